"""Google Cloud Storage, through its JSON API."""
