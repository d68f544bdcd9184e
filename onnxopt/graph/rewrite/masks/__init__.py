"""What attention masks are known to show, from what integer and bool tensors hold. May import: shapes."""
