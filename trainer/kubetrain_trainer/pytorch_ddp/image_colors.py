"""Changes of an image's colors."""

from collections.abc import Callable

from PIL import Image, ImageEnhance, ImageOps

from kubetrain_trainer.augmentation import Color

CHANGES: dict[Color, Callable[[Image.Image, float], Image.Image]] = {
    Color.NONE: lambda image, amount: image,
    Color.BRIGHTNESS: lambda image, amount: ImageEnhance.Brightness(image).enhance(amount),
    Color.CONTRAST: lambda image, amount: ImageEnhance.Contrast(image).enhance(amount),
    Color.SATURATION: lambda image, amount: ImageEnhance.Color(image).enhance(amount),
    Color.SHARPNESS: lambda image, amount: ImageEnhance.Sharpness(image).enhance(amount),
    Color.POSTERIZE: lambda image, amount: ImageOps.posterize(image, int(amount)),
    Color.SOLARIZE: lambda image, amount: ImageOps.solarize(image, int(amount)),
    Color.AUTOCONTRAST: lambda image, amount: ImageOps.autocontrast(image),
    Color.EQUALIZE: lambda image, amount: ImageOps.equalize(image),
}


def recolor(image: Image.Image, kind: Color, amount: float) -> Image.Image:
    return CHANGES[kind](image, amount)
