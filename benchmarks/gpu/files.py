"""Images per second of ResNet-50 from JPEG files of 500 x 375 pixels, which the page cache holds."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, run
from images import write_images
from throughput import MINIATURE, UNTIMED_STEPS, Sizes, images, ours, textbook
from trainings import steps


def measure(miniature: bool) -> Iterator[Figure]:
    sizes = MINIATURE if miniature else Sizes()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_images(place / "images", 64 * sizes.batch)
        usual = textbook(sizes, str(place / "images/train"), {}, steps=sizes.steps // 2)
        yield images("textbook script, four loading processes", usual)
        output = place / "standard"
        settings = {"model": f"torchvision:{sizes.model}", "data": "image_folder", "epochs": 20, "recipe": "standard"}
        yield images("kubetrain, recipe=standard", ours(sizes, output, place / "images", **settings))
        yield Figure(what="… waiting for data, as a share", value=waiting(output), at_most=0.03)


def waiting(output: Path) -> float:
    """Return the share of the time, of which slow steps take more than their number."""
    timed = [row for row in steps(output) if row["step"] > UNTIMED_STEPS]
    seconds = [1 / row["samples_per_second"] for row in timed]
    return sum(row["data_wait_share"] * each for row, each in zip(timed, seconds, strict=True)) / sum(seconds)


if __name__ == "__main__":
    run(measure)
