"""Set-up of the whole suite, before anything imports torch.

Being here puts `tests` on the import path: `architectures`, `contract` and `reference` are imported by name.
"""

from __future__ import annotations

import os

# The tensors are tiny: a second thread costs a hundred times what it saves, and workers run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
