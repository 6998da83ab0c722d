"""The extra that a missing package belongs to. It needs only the standard library."""

EXTRAS = {
    "pytorch": ("torch", "torchvision"),
    "tensorflow": ("tensorflow", "keras"),
    "demo": ("flask", "flask_cors", "moto", "sklearn"),
}
"""The packages of the extras, apart from those of `pipelines`."""


def missing_extra(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), "pipelines")
    return f"the package '{package}' is not installed: run `pip install -e '.[{extra}]'` in kubetrain's clone"
