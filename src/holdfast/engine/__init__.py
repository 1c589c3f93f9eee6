"""What runs programs: it performs what is outstanding, and writes down what came of it."""
