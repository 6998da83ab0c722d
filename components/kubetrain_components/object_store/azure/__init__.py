"""Azure Blob Storage, through its REST API."""
