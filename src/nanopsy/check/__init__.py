"""`nanopsy check`: the mistakes in source code, before anything runs. Imports neither torch nor the code it reads."""
