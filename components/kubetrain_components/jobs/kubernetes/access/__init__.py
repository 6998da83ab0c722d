"""How to reach an API server: which server, through which proxy, with which certificates, as which user."""
