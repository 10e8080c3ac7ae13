"""The one place that opens diskcache, safely, the locks and the files beside it."""
