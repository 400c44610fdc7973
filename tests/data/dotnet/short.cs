// Short enough that the compiler does not pack it.
class Short { int One() { return 1; } }
