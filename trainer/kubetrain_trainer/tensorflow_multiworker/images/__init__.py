"""Images from files, and how the recipe changes them."""
