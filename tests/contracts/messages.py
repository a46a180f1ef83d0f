"""The full text of every message: what, where, the value, what was expected, what to do."""

import inspect
import pickle
from types import ModuleType

from icgd.errors import IcgdError

TESTED: set[str] = set()


def made(maker, *args, **settings) -> IcgdError | UserWarning:
    """The error that `maker` makes; remembers that it was tested."""
    TESTED.add(maker.__qualname__)
    return maker(*args, **settings)


def assert_complete(error: BaseException, text: str) -> None:
    assert str(error) == text
    assert isinstance(error, IcgdError | UserWarning)
    travelled = pickle.loads(pickle.dumps(error))  # noqa: S301 - as workers send it
    assert (type(travelled), str(travelled)) == (type(error), text)
    assert vars(travelled).keys() == vars(error).keys()


def makers_of(module: ModuleType) -> set[str]:
    """Each class method of `module` that builds a message, such as `DataError.empty`."""
    classes = [c for c in vars(module).values() if inspect.isclass(c)]
    return {
        f"{error.__name__}.{name}"
        for error in classes
        if error.__module__ == module.__name__
        for name, member in vars(error).items()
        if isinstance(member, classmethod)
    }


def assert_every_message_is_made(module: ModuleType) -> None:
    makers = makers_of(module)
    assert makers, f"{module.__name__} makes no message"
    assert makers <= TESTED, f"without a test: {', '.join(sorted(makers - TESTED))}"
