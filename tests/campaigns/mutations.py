"""How files are damaged: bits and bytes at random places."""

from __future__ import annotations

from random import Random


def damaged(random: Random, content: bytes) -> tuple[str, bytes]:
    """What was done, and the bytes of a file with a fault such as disks and people make."""
    place = random.randrange(len(content))
    kind = random.choice(["bit", "bit", "bit", "byte", "cut", "gap", "zeros", "more", "twice"])
    size = random.choice([1, 8, 100, 4096])
    before, after = content[:place], content[place + 1 :]
    new = {
        "bit": lambda: before + bytes([content[place] ^ 1 << random.randrange(8)]) + after,
        "byte": lambda: before + bytes([random.randrange(256)]) + after,
        "cut": lambda: before,
        "gap": lambda: before + content[place + size :],
        "zeros": lambda: before + bytes(min(size, len(content) - place)) + content[place + size :],
        "more": lambda: content + random.randbytes(size),
        "twice": lambda: content[: place + size] + content[place:],
    }[kind]()
    return f"{kind} at {place} of {len(content)}", new
