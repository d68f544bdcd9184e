"""What attention masks show, proved from what integer and bool tensors hold. May import program and graph/shapes."""
