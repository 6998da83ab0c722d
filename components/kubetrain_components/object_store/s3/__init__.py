"""S3, through HTTP connections of our own."""

import logging

# botocore says for each session where it found the credentials, which nobody needs to know if it found them.
logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
