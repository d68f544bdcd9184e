"""Rules on products: their forms, and what is folded into them or merged with them."""
