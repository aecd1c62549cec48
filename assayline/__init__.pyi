from assayline.api.engine import Answer as Answer
from assayline.api.engine import Ask as Ask
from assayline.api.engine import Engine as Engine
from assayline.api.operations import evaluate as evaluate

__version__: str
