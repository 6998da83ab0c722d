"""Answers that a valid request gets now and then, from the API server or from what is before it."""

from support.api_server import Fault, Handler, answer


def html(handler: Handler, status: int = 200) -> bool:
    headers = {"Content-Type": "text/html", "Location": "https://login.example"}
    handler.send_bytes(status, b"<html>log in</html>", headers)
    return True


STRAY: dict[str, Fault] = {
    "401": answer(401, "Unauthorized"),
    "403": answer(403, 'pods is forbidden: User "me" cannot list resource "pods" in API group "": role not found'),
    "404 of a gateway": lambda handler: handler.send_bytes(404, b"default backend - 404") is None,
    "404 of the server": lambda handler: handler.send_bytes(404, b"404 page not found") is None,
    "408": answer(408, "timeout"),
    "a redirect": lambda handler: html(handler, 302),
    "a login page": html,
    "a gateway's 403": lambda handler: html(handler, 403),
}
