"""``python -m gnusnode.inference.child``: an engine child, spoken to on its standard input and output."""

import os

from gnusnode.inference.child.main import main

# Not sys.exit: the reader thread may sit in a read that no interpreter shutdown can interrupt, and the model's memory
# is given back faster by the kernel than by destructors.
os._exit(main())
