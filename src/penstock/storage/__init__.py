"""Where blocks, journals and state are kept. One port (``port``), one module or package per
engine."""
