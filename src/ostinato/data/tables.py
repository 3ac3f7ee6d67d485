"""Rows of Parquet files, and of Arrow files as `datasets` saves them, by pyarrow; streams that are compressed by zstd.

pyarrow is an extra and imported when the first such file is opened. Only one batch of rows is in memory at a time.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ostinato.data.disk import refetch_hint
from ostinato.errors import DataError, on_one_line

if TYPE_CHECKING:
    from types import ModuleType

_ROWS_A_BATCH = 1024
_BUFFER = 1 << 20
"""Bytes of a column that are read at once."""
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of a whole Arrow stream."""
_FILE_MARK = b"ARROW1"
"""The first bytes of Arrow's file format."""
_UNREADABLE = (ValueError, OverflowError, KeyError)
"""What is raised where Python has no such text, no such date, or does not know the time zone."""


def pyarrow_for(path: Path) -> ModuleType:
    """Return pyarrow.

    Raises:
        DataError: it is not installed; names the file that needs it.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(f"{path}: reading {path.suffix} files needs pyarrow: pip install 'ostinato[data]'") from error
    return cast("ModuleType", pyarrow)


def open_zstd(path: Path) -> BinaryIO:
    """Return the decompressed bytes of a file as a stream; damage is an OSError without a number."""
    stream = pyarrow_for(path).input_stream(str(path), compression="zstd")
    return cast(BinaryIO, io.BufferedReader(stream, 1 << 20))


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file into a DataError that names it."""
    arrow = pyarrow_for(path)
    try:
        yield
    except (arrow.ArrowException, OSError, *_UNREADABLE) as error:
        reason = on_one_line(error)
        raise DataError(f"{path}: is damaged, or no {path.suffix} file: {reason}{refetch_hint(path)}") from error


def _rows(batch: Any, path: Path, n_before: int) -> list[dict[str, Any]]:
    """Return the rows of a batch, before which the file has so many.

    Raises:
        DataError: a value cannot be read; names its row and column.
    """
    try:
        return cast("list[dict[str, Any]]", batch.to_pylist())
    except _UNREADABLE:
        for number in range(batch.num_rows):
            for field, column in zip(batch.schema, batch.columns, strict=True):
                try:
                    column[number].as_py()
                except _UNREADABLE as error:
                    reason = f"column {field.name!r} ({field.type}) holds what cannot be read: {on_one_line(error)}"
                    where = f"{path}, row {n_before + number + 1}"
                    raise DataError(f"{where}: {reason}{refetch_hint(path)}") from error
        raise


def parquet_groups(path: Path) -> list[tuple[int, int]]:
    """Return rows and compressed bytes of every row group of a Parquet file.

    Raises:
        DataError: the file is damaged.
    """
    with _sound(path):
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            return [
                (group.num_rows, sum(group.column(i).total_compressed_size for i in range(group.num_columns)))
                for group in groups
            ]


def read_parquet(
    path: Path, wanted: Sequence[str] | None = None, groups: range | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file.

    Args:
        wanted: columns to read, those that are there; None: all. groups: of rows, by their numbers; None: all.

    Raises:
        DataError: the file is damaged, or a value cannot be read.
    """
    with _sound(path):
        import pyarrow.parquet

        # Buffered beforehand, all row groups that are asked for would be held until the last row was read.
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
            names = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
            chosen = None if groups is None else list(groups)
            n_before = 0 if groups is None else sum(file.metadata.row_group(i).num_rows for i in range(groups.start))
            for batch in file.iter_batches(_ROWS_A_BATCH, row_groups=chosen, columns=names):
                yield from _rows(batch, path, n_before)
                n_before += batch.num_rows


def _is_arrow_file(source: Any) -> bool:
    """Return whether what is mapped is in Arrow's file format: that of streams between two marks, with a table."""
    return bool(source.size() >= len(_FILE_MARK) and source.read_at(len(_FILE_MARK), 0) == _FILE_MARK)


def read_arrow(path: Path, wanted: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow stream, as datasets saves it, or file, which is mapped and not read as a whole.

    Arguments: as of `read_parquet`.

    Raises:
        DataError: the file is damaged, or cut off, or a value cannot be read.
    """
    arrow = pyarrow_for(path)
    with _sound(path), arrow.memory_map(str(path)) as source:
        is_file = _is_arrow_file(source)
        # Cut off between two batches a stream would read as a shorter one.
        if not is_file and (
            source.size() < len(_END_OF_STREAM) or source.read_at(8, source.size() - 8) != _END_OF_STREAM
        ):
            raise DataError(f"{path}: is no whole Arrow stream: it is cut off{refetch_hint(path)}")
        with arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source) as reader:
            # By their numbers: a name may stand twice.
            chosen = [i for i, name in enumerate(reader.schema.names) if wanted is None or name in wanted]
            n_before = 0
            for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
                few = batch.select(chosen)
                for start in range(0, few.num_rows, _ROWS_A_BATCH):
                    yield from _rows(few.slice(start, _ROWS_A_BATCH), path, n_before + start)
                n_before += batch.num_rows


def columns_of(path: Path) -> list[str]:
    """Return the names of the columns of a Parquet or Arrow file.

    Raises:
        DataError: the file is damaged.
    """
    arrow = pyarrow_for(path)
    with _sound(path):
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet

            return list(pyarrow.parquet.read_schema(path).names)
        with arrow.memory_map(str(path)) as source:
            opened = arrow.ipc.open_file if _is_arrow_file(source) else arrow.ipc.open_stream
            return list(opened(source).schema.names)
