"""What a head does on a text: a page to look at."""
