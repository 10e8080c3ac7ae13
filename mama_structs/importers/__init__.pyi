from .dispatch import import_from as import_from
from .shared.import_model import ItemWarning as ItemWarning
from .shared.import_report import ImportReport as ImportReport
from .shared.import_report import ItemCount as ItemCount
