"""S3, through HTTP connections of our own."""

import logging

# botocore says for each session where it found the credentials. If it finds none, that is an error anyway.
logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
