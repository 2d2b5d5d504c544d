/* decode_columns: records of a log or of a pull answer, as the columns of a record batch; and
 * walk_records, which finds where the records of a log begin.
 *
 * The former gives what decode_records of arrow/decode.py gives: for each column the bytes that Arrow
 * wants, numbers in this machine's byte order, texts one behind the other with their offsets.
 * It stops at a record that is damaged, of another queue or of another size than its unit says,
 * that has an IPv6 host, a compressed body that is wanted, or properties of an odd form, and, where
 * CRCs are checked, a CRC of the whole record.
 *
 * Records of one queue lie apart in the log, so most of the time would go into waiting for memory.
 * Therefore a few records at a time are read, while those behind them are fetched, and each column
 * is filled from these few before the next ones are read.
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "record.h"
#include "row_properties.h"

enum {
    BLOCK_ROWS = 64,
    /* How many records ahead memory is asked for. */
    FETCHED_ROWS = 8,
    WALKED_AHEAD_BYTES = 4096,
    ROWS_MAX = 1 << 24,
    COLUMNS_MAX = 32,
    COMPRESSED_FLAG = 1,
    ANY_V6_FLAG = SYS_FLAG_BORN_V6 | SYS_FLAG_STORE_V6,
    HOST_BYTES = 8,
    /* 255.255.255.255:-2147483648 */
    HOST_TEXT_MAX = 27,
    MESSAGE_ID_BYTES = 32,
    /* A column has room for so many bytes more than its rows so far let expect. */
    SPARE_BYTES = 4096,
};

/* Microseconds of later times do not fit into 64 bits. */
static const int64_t TIME_MAX_MS = INT64_MAX / 1000;

/* The order of COLUMNS of arrow/options.py. */
typedef enum {
    TOPIC, BROKER, QUEUE_ID, QUEUE_OFFSET, PHYSICAL_OFFSET, BODY, TAGS, KEYS, PROPERTIES,
    BORN_TIME, STORE_TIME, BORN_HOST, STORE_HOST, MESSAGE_ID, UNIQ_KEY, RECONSUME_TIMES, SYS_FLAG,
    COLUMN_KINDS,
} ColumnKind;

/* Bytes of a bytearray that grows. */
typedef struct {
    PyObject *array;
    uint8_t *bytes;
    size_t size, capacity;
} Bytes;

typedef struct {
    ColumnKind kind;
    Bytes values, offsets, validity;
    size_t null_count;
    /* Of properties: names and values of all rows, and where those of each row begin. */
    Bytes names, name_offsets, row_offsets;
    bool has_names;
} Column;

typedef struct {
    Record record;
    /* Its properties among those of the block. */
    size_t first, count;
    int tags, keys, uniq_key;
} Row;

typedef struct {
    Span log;
    int64_t log_start;
    Span starts, sizes, queue_offsets;
    size_t unit_count;
    int32_t queue_id;
    bool has_queue, is_crc_checked, is_body_wanted, has_properties;
    int64_t starting_ms, ending_ms;
    PyObject *tags;

    Column columns[COLUMNS_MAX];
    size_t column_count;
    Bytes rows;
    size_t row_count;

    Shape shape, first_shape;
    bool has_shape, is_uniform;
    Row block[BLOCK_ROWS];
    size_t block_rows;
    Span names[BLOCK_ROWS * ROW_PROPERTIES_MAX], values[BLOCK_ROWS * ROW_PROPERTIES_MAX];
    size_t property_count;
    size_t filled_properties;
} Batch;

/* What comes of a step: goes on, stops for Python, or has raised an exception. */
typedef enum { FAILED = -1, STOPPED = 0, DONE = 1 } Outcome;

/* -- bytearrays -------------------------------------------------------------------------------- */

/* Make room for `size` more bytes; the first block of a batch lets expect how many will come. */
static bool reserve(const Batch *batch, Bytes *bytes, size_t size) {
    if (bytes->array != NULL && size <= bytes->capacity - bytes->size)
        return true;
    size_t wanted = bytes->size + size, done = batch->row_count + batch->block_rows;
    size_t capacity = wanted + SPARE_BYTES;
    if (done != 0 && done < batch->unit_count)
        capacity += wanted / done * (batch->unit_count - done) / 16 * 17;
    if (capacity > INT32_MAX)
        capacity = wanted;
    if (bytes->array == NULL)
        bytes->array = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)capacity);
    else if (PyByteArray_Resize(bytes->array, (Py_ssize_t)capacity) < 0)
        return false;
    if (bytes->array == NULL)
        return false;
    bytes->bytes = (uint8_t *)PyByteArray_AsString(bytes->array);
    bytes->capacity = capacity;
    return true;
}

static bool add_int32(const Batch *batch, Bytes *bytes, size_t number) {
    int32_t value = (int32_t)number;
    if (!reserve(batch, bytes, sizeof value))
        return false;
    memcpy(bytes->bytes + bytes->size, &value, sizeof value);
    bytes->size += sizeof value;
    return true;
}

/* The bytearray with its final size; a new reference. */
static PyObject *array_of(const Batch *batch, Bytes *bytes) {
    if (!reserve(batch, bytes, 0) ||
        PyByteArray_Resize(bytes->array, (Py_ssize_t)bytes->size) < 0)
        return NULL;
    return Py_NewRef(bytes->array);
}

static void release(Bytes *bytes) {
    Py_CLEAR(bytes->array);
}

/* -- rows -------------------------------------------------------------------------------------- */

static bool is_utf8(Span text) {
    PyObject *decoded = PyUnicode_DecodeUTF8((const char *)text.start, (Py_ssize_t)text.size, NULL);
    if (decoded == NULL)
        PyErr_Clear();
    Py_XDECREF(decoded);
    return decoded != NULL;
}

static void copy_names(Batch *batch, size_t first, const Shape *shape) {
    memcpy(batch->names + first, shape->names, shape->count * sizeof *shape->names);
}

/* Read the properties of a row into those of the block; false stops. */
static bool read_properties(Batch *batch, Row *row) {
    Span *values = batch->values + batch->property_count;
    bool has_changed;
    uint64_t bits = 0;
    Span text = row->record.properties;
    if (!read_row_properties(text, &batch->shape, values, &has_changed, &bits) ||
        ((bits & 0x8080808080808080u) != 0 && !is_utf8(text)))
        return false;
    const Shape *shape = &batch->shape;
    if (!batch->has_shape)
        batch->first_shape = *shape;
    else if (has_changed && batch->is_uniform) {
        batch->is_uniform = false;
        for (size_t i = 0; i < batch->block_rows; i++)
            copy_names(batch, batch->block[i].first, &batch->first_shape);
    }
    batch->has_shape = true;
    row->first = batch->property_count;
    row->count = shape->count;
    row->tags = shape->tags;
    row->keys = shape->keys;
    row->uniq_key = shape->uniq_key;
    if (!batch->is_uniform)
        copy_names(batch, row->first, shape);
    return true;
}

/* Whether the row has one of the wanted tags; FAILED: an exception. */
static int has_wanted_tag(const Batch *batch, const Row *row) {
    if (row->tags < 0)
        return 0;
    Span value = batch->values[row->first + (size_t)row->tags];
    PyObject *tag = PyBytes_FromStringAndSize((const char *)value.start, (Py_ssize_t)value.size);
    if (tag == NULL)
        return FAILED;
    int is_wanted = PySet_Contains(batch->tags, tag);
    Py_DECREF(tag);
    return is_wanted;
}

static bool is_time(int64_t ms) {
    return ms <= TIME_MAX_MS && ms >= -TIME_MAX_MS;
}

/* Whether the record ends with a CRC of its own, as in codec/crc.py. */
static bool has_crc_tail(const Record *record) {
    enum { TAIL_BYTES = 20, NAME_BYTES = 9 };
    Cursor cursor = cursor_of(record->properties);
    size_t size = record->properties.size;
    return size >= TAIL_BYTES && read_bytes(&cursor, size - TAIL_BYTES) != NULL &&
           read_text(&cursor, "__CRC32#\x01", NAME_BYTES);
}

/* Read the record of a unit; false stops. */
static bool read_unit(const Batch *batch, size_t index, Record *record) {
    int64_t start = number_at(batch->starts, index), size = number_at(batch->sizes, index);
    Cursor log = cursor_of(batch->log);
    Span whole;
    if (start < 0 || size < 0 || read_bytes(&log, (size_t)start) == NULL ||
        !read_span(&log, (size_t)size, &whole))
        return false;
    Cursor cursor = cursor_of(whole);
    return read_record(&cursor, record) && bytes_left(&cursor) == 0 &&
           (record->sys_flag & ANY_V6_FLAG) == 0 &&
           (batch->log_start < 0 || record->physical_offset == batch->log_start + start) &&
           (!batch->has_queue || (record->queue_id == batch->queue_id &&
                                  record->queue_offset == number_at(batch->queue_offsets, index))) &&
           !(batch->is_body_wanted && (record->sys_flag & COMPRESSED_FLAG)) &&
           is_time(record->born_ms) && is_time(record->store_ms) &&
           (!batch->is_crc_checked || (has_body_crc(record) && !has_crc_tail(record)));
}

/* Read the record of a unit into the block, unless the limits of time or tags leave it out. */
static Outcome take_unit(Batch *batch, size_t index) {
    Row *row = &batch->block[batch->block_rows];
    if (!read_unit(batch, index, &row->record))
        return STOPPED;
    if (row->record.store_ms < batch->starting_ms || row->record.store_ms >= batch->ending_ms)
        return DONE;
    if (batch->has_properties && !read_properties(batch, row))
        return STOPPED;
    if (batch->tags != NULL) {
        int is_wanted = has_wanted_tag(batch, row);
        if (is_wanted != 1)
            return is_wanted == 0 ? DONE : FAILED;
    }
    if (batch->has_properties)
        batch->property_count += row->count;
    int64_t number = (int64_t)index;
    if (!reserve(batch, &batch->rows, sizeof number))
        return FAILED;
    memcpy(batch->rows.bytes + batch->rows.size, &number, sizeof number);
    batch->rows.size += sizeof number;
    batch->block_rows++;
    return DONE;
}

/* -- columns ----------------------------------------------------------------------------------- */

#define FILL_NUMBERS(type, expression)                                                             \
    for (size_t i = 0; i < batch->block_rows; i++) {                                               \
        const Record *record = &batch->block[i].record;                                            \
        type number = (expression);                                                                \
        memcpy(at + i * sizeof number, &number, sizeof number);                                    \
    }

static Outcome fill_numbers(Batch *batch, Column *column, size_t width) {
    Bytes *values = &column->values;
    if (!reserve(batch, values, width * batch->block_rows))
        return FAILED;
    uint8_t *at = values->bytes + values->size;
    switch (column->kind) {
    case QUEUE_ID:
        FILL_NUMBERS(int32_t, record->queue_id)
        break;
    case QUEUE_OFFSET:
        FILL_NUMBERS(int64_t, record->queue_offset)
        break;
    case PHYSICAL_OFFSET:
        FILL_NUMBERS(int64_t, record->physical_offset)
        break;
    case BORN_TIME:
        FILL_NUMBERS(int64_t, record->born_ms * 1000)
        break;
    case STORE_TIME:
        FILL_NUMBERS(int64_t, record->store_ms * 1000)
        break;
    case RECONSUME_TIMES:
        FILL_NUMBERS(int32_t, record->reconsume_times)
        break;
    default:
        FILL_NUMBERS(int32_t, record->sys_flag)
        break;
    }
    values->size += width * batch->block_rows;
    return DONE;
}

/* The text of a row; without a start: null. */
static Span text_of(const Batch *batch, const Row *row, ColumnKind kind) {
    int number;
    switch (kind) {
    case BODY:
        return row->record.body;
    case TOPIC:
        return row->record.topic;
    case TAGS:
        number = row->tags;
        break;
    case KEYS:
        number = row->keys;
        break;
    default:
        number = row->uniq_key;
        break;
    }
    return number < 0 ? (Span){0} : batch->values[row->first + (size_t)number];
}

/* Make room for the offsets of a block; the first one is 0. */
static bool reserve_offsets(const Batch *batch, Bytes *offsets, size_t count) {
    return (offsets->size != 0 || add_int32(batch, offsets, 0)) &&
           reserve(batch, offsets, count * sizeof(int32_t));
}

static void put_offset(Bytes *offsets, size_t end) {
    int32_t value = (int32_t)end;
    memcpy(offsets->bytes + offsets->size, &value, sizeof value);
    offsets->size += sizeof value;
}

/* Add texts, with their ends; false without memory. */
static Outcome add_texts(Batch *batch, Bytes *values, Bytes *offsets, const Span *texts,
                         size_t count) {
    size_t size = 0;
    for (size_t i = 0; i < count; i++)
        size += texts[i].size;
    if (size > INT32_MAX - values->size)
        return STOPPED;
    if (!reserve(batch, values, size) || !reserve_offsets(batch, offsets, count))
        return FAILED;
    for (size_t i = 0; i < count; i++) {
        put_span(values->bytes + values->size, texts[i]);
        values->size += texts[i].size;
        put_offset(offsets, values->size);
    }
    return DONE;
}

/* Note which rows of a block have a text. */
static Outcome fill_validity(Batch *batch, Column *column, const Span *texts) {
    Bytes *validity = &column->validity;
    size_t size = (batch->row_count + batch->block_rows + 7) / 8;
    if (!reserve(batch, validity, size - validity->size))
        return FAILED;
    memset(validity->bytes + validity->size, 0, size - validity->size);
    validity->size = size;
    for (size_t i = 0; i < batch->block_rows; i++) {
        size_t row = batch->row_count + i;
        if (texts[i].start != NULL)
            validity->bytes[row / 8] |= (uint8_t)(1u << row % 8);
        else
            column->null_count++;
    }
    return DONE;
}

static Outcome fill_texts(Batch *batch, Column *column) {
    Span texts[BLOCK_ROWS];
    for (size_t i = 0; i < batch->block_rows; i++) {
        texts[i] = text_of(batch, &batch->block[i], column->kind);
        if (column->kind == TOPIC && !is_ascii(texts[i]) && !is_utf8(texts[i]))
            return STOPPED;
    }
    if (column->kind != BODY && column->kind != TOPIC &&
        fill_validity(batch, column, texts) == FAILED)
        return FAILED;
    return add_texts(batch, &column->values, &column->offsets, texts, batch->block_rows);
}

static Outcome fill_properties(Batch *batch, Column *column) {
    if (!reserve_offsets(batch, &column->row_offsets, batch->block_rows))
        return FAILED;
    for (size_t i = 0; i < batch->block_rows; i++)
        put_offset(&column->row_offsets,
                   batch->filled_properties + batch->block[i].first + batch->block[i].count);
    if (!batch->is_uniform) {
        /* Rows before this block had the names of the first. */
        const Shape *first = &batch->first_shape;
        for (size_t i = 0; !column->has_names && i < batch->row_count; i++) {
            Outcome is_added = add_texts(batch, &column->names, &column->name_offsets,
                                         first->names, first->count);
            if (is_added != DONE)
                return is_added;
        }
        column->has_names = true;
        Outcome is_added = add_texts(batch, &column->names, &column->name_offsets, batch->names,
                                     batch->property_count);
        if (is_added != DONE)
            return is_added;
    }
    return add_texts(batch, &column->values, &column->offsets, batch->values,
                     batch->property_count);
}

static uint8_t *put_decimal(uint8_t *at, uint32_t number) {
    uint8_t digits[10];
    size_t count = 0;
    do
        digits[count++] = (uint8_t)('0' + number % 10);
    while ((number /= 10) != 0);
    while (count != 0)
        *at++ = digits[--count];
    return at;
}

/* Write ip:port of a host field; the port is a signed number of 32 bits. */
static uint8_t *put_host(uint8_t *at, const uint8_t *host) {
    for (size_t i = 0; i < 4; i++) {
        at = put_decimal(at, host[i]);
        *at++ = i == 3 ? ':' : '.';
    }
    uint32_t port = load_u32(host + 4);
    if (port > INT32_MAX) {
        *at++ = '-';
        port = 0u - port;
    }
    return put_decimal(at, port);
}

static Outcome fill_hosts(Batch *batch, Column *column) {
    Bytes *values = &column->values;
    if (values->size > INT32_MAX - BLOCK_ROWS * HOST_TEXT_MAX)
        return STOPPED;
    if (!reserve(batch, values, batch->block_rows * HOST_TEXT_MAX) ||
        !reserve_offsets(batch, &column->offsets, batch->block_rows))
        return FAILED;
    Span before = {0};
    size_t size = 0;
    for (size_t i = 0; i < batch->block_rows; i++) {
        const Record *record = &batch->block[i].record;
        Span host = column->kind == BORN_HOST ? record->born_host : record->store_host;
        uint8_t *at = values->bytes + values->size;
        /* Equal hosts follow one another. */
        if (before.start != NULL && is_equal(before, host.start, host.size))
            memcpy(at, at - size, size);
        else
            size = (size_t)(put_host(at, host.start) - at);
        before = host;
        values->size += size;
        put_offset(&column->offsets, values->size);
    }
    return DONE;
}

static uint8_t *put_hex(uint8_t *at, const uint8_t *bytes, size_t size) {
    static const char DIGITS[] = "0123456789ABCDEF";
    for (size_t i = 0; i < size; i++) {
        *at++ = (uint8_t)DIGITS[bytes[i] >> 4];
        *at++ = (uint8_t)DIGITS[bytes[i] & 15];
    }
    return at;
}

static Outcome fill_message_ids(Batch *batch, Column *column) {
    Bytes *values = &column->values;
    if (!reserve(batch, values, batch->block_rows * MESSAGE_ID_BYTES) ||
        !reserve_offsets(batch, &column->offsets, batch->block_rows))
        return FAILED;
    for (size_t i = 0; i < batch->block_rows; i++) {
        const Record *record = &batch->block[i].record;
        uint8_t offset[8];
        store_u64(offset, (uint64_t)record->physical_offset);
        uint8_t *at = put_hex(values->bytes + values->size, record->store_host.start, HOST_BYTES);
        put_hex(at, offset, sizeof offset);
        values->size += MESSAGE_ID_BYTES;
        put_offset(&column->offsets, values->size);
    }
    return DONE;
}

static Outcome fill_column(Batch *batch, Column *column) {
    switch (column->kind) {
    case QUEUE_ID:
    case RECONSUME_TIMES:
    case SYS_FLAG:
        return fill_numbers(batch, column, sizeof(int32_t));
    case QUEUE_OFFSET:
    case PHYSICAL_OFFSET:
    case BORN_TIME:
    case STORE_TIME:
        return fill_numbers(batch, column, sizeof(int64_t));
    case PROPERTIES:
        return fill_properties(batch, column);
    case BORN_HOST:
    case STORE_HOST:
        return fill_hosts(batch, column);
    case MESSAGE_ID:
        return fill_message_ids(batch, column);
    default:
        return fill_texts(batch, column);
    }
}

static Outcome fill_block(Batch *batch) {
    for (size_t i = 0; i < batch->column_count; i++) {
        Outcome is_filled = fill_column(batch, &batch->columns[i]);
        if (is_filled != DONE)
            return is_filled;
    }
    batch->row_count += batch->block_rows;
    batch->filled_properties += batch->property_count;
    batch->block_rows = batch->property_count = 0;
    return DONE;
}

static Outcome fill_batch(Batch *batch) {
    for (size_t i = 0; i < batch->unit_count; i++) {
        size_t ahead = i + FETCHED_ROWS;
        if (ahead < batch->unit_count)
            prefetch(batch->log, number_at(batch->starts, ahead), number_at(batch->sizes, ahead));
        Outcome is_done = take_unit(batch, i);
        if (is_done == DONE && batch->block_rows == BLOCK_ROWS)
            is_done = fill_block(batch);
        if (is_done != DONE)
            return is_done;
    }
    return fill_block(batch);
}

/* -- results ----------------------------------------------------------------------------------- */

/* The bytes of a map: where the entries of each row begin, names, and values with offsets. */
static PyObject *map_of(Batch *batch, Column *column) {
    PyObject *names;
    if (batch->is_uniform) {
        const Shape *shape = &batch->first_shape;
        names = PyList_New(0);
        for (size_t i = 0; names != NULL && i < shape->count; i++) {
            PyObject *name = PyBytes_FromStringAndSize((const char *)shape->names[i].start,
                                                       (Py_ssize_t)shape->names[i].size);
            if (name == NULL || PyList_Append(names, name) < 0)
                Py_CLEAR(names);
            Py_XDECREF(name);
        }
    } else
        names = Py_BuildValue("(NN)", array_of(batch, &column->name_offsets),
                              array_of(batch, &column->names));
    if (names == NULL)
        return NULL;
    return Py_BuildValue("(NNNN)", array_of(batch, &column->row_offsets), names,
                         array_of(batch, &column->offsets), array_of(batch, &column->values));
}

static PyObject *column_of(Batch *batch, Column *column) {
    if ((column->kind == PROPERTIES && !reserve_offsets(batch, &column->row_offsets, 0)) ||
        !reserve_offsets(batch, &column->offsets, 0))
        return NULL;
    switch (column->kind) {
    case QUEUE_ID:
    case RECONSUME_TIMES:
    case SYS_FLAG:
    case QUEUE_OFFSET:
    case PHYSICAL_OFFSET:
    case BORN_TIME:
    case STORE_TIME:
        return array_of(batch, &column->values);
    case PROPERTIES:
        return map_of(batch, column);
    default:
        if (column->null_count == 0)
            return Py_BuildValue("(NNOn)", array_of(batch, &column->offsets),
                                 array_of(batch, &column->values), Py_None, (Py_ssize_t)0);
        return Py_BuildValue("(NNNn)", array_of(batch, &column->offsets),
                             array_of(batch, &column->values), array_of(batch, &column->validity),
                             (Py_ssize_t)column->null_count);
    }
}

static PyObject *result_of(Batch *batch) {
    PyObject *columns = PyList_New(0);
    for (size_t i = 0; columns != NULL && i < batch->column_count; i++) {
        PyObject *column = column_of(batch, &batch->columns[i]);
        if (column == NULL || PyList_Append(columns, column) < 0)
            Py_CLEAR(columns);
        Py_XDECREF(column);
    }
    if (columns == NULL)
        return NULL;
    if (batch->row_count == batch->unit_count)
        return Py_BuildValue("(ON)", Py_None, columns);
    return Py_BuildValue("(NN)", array_of(batch, &batch->rows), columns);
}

/* Take the wanted columns; false with an exception where one is unknown. */
static bool take_columns(Batch *batch, Span kinds) {
    Cursor cursor = cursor_of(kinds);
    for (int kind; (kind = take_byte(&cursor)) >= 0;) {
        if (kind >= COLUMN_KINDS || kind == BROKER || batch->column_count == COLUMNS_MAX) {
            PyErr_SetString(PyExc_ValueError, "decode_columns() got a column that is unknown");
            return false;
        }
        batch->columns[batch->column_count++].kind = (ColumnKind)kind;
        batch->is_body_wanted |= kind == BODY;
        batch->has_properties |=
            kind == TAGS || kind == KEYS || kind == UNIQ_KEY || kind == PROPERTIES;
    }
    batch->has_properties |= batch->tags != NULL;
    return true;
}

static void free_batch(Batch *batch) {
    for (size_t i = 0; i < batch->column_count; i++) {
        Column *column = &batch->columns[i];
        Bytes *all[] = {&column->values, &column->offsets, &column->validity,
                        &column->names, &column->name_offsets, &column->row_offsets};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            release(all[j]);
    }
    release(&batch->rows);
    free(batch);
}

static Span span_of(const Py_buffer *buffer) {
    return (Span){buffer->buf, (size_t)buffer->len};
}

PyObject *decode_columns(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer log, starts, sizes, kinds, queue_offsets = {0};
    long long log_start, starting_ms, ending_ms;
    int queue_id, is_crc_checked;
    PyObject *queue, *tags;
    if (!PyArg_ParseTuple(arguments, "y*Ly*y*y*iOLLOp", &log, &log_start, &starts, &sizes, &kinds,
                          &queue_id, &queue, &starting_ms, &ending_ms, &tags, &is_crc_checked))
        return NULL;
    PyObject *result = NULL;
    Batch *batch = calloc(1, sizeof *batch);
    bool has_offsets = false;
    if (batch == NULL)
        PyErr_NoMemory();
    else if (queue == Py_None ||
             (has_offsets = PyObject_GetBuffer(queue, &queue_offsets, PyBUF_SIMPLE) == 0)) {
        batch->log = span_of(&log);
        batch->log_start = log_start;
        batch->starts = span_of(&starts);
        batch->sizes = span_of(&sizes);
        batch->unit_count = batch->starts.size / sizeof(int64_t);
        batch->has_queue = has_offsets;
        batch->queue_offsets = span_of(&queue_offsets);
        batch->queue_id = queue_id;
        batch->is_crc_checked = is_crc_checked;
        batch->starting_ms = starting_ms;
        batch->ending_ms = ending_ms;
        batch->tags = tags == Py_None ? NULL : tags;
        batch->shape = (Shape){.tags = -1, .keys = -1, .uniq_key = -1};
        batch->is_uniform = true;
        if (starts.len % (Py_ssize_t)sizeof(int64_t) != 0 || sizes.len != starts.len ||
            (has_offsets && queue_offsets.len != starts.len) ||
            (batch->tags != NULL && !PyFrozenSet_Check(tags)) || batch->unit_count > ROWS_MAX ||
            log_start > INT64_MAX - log.len)
            PyErr_SetString(PyExc_ValueError,
                            "decode_columns() got an argument that is out of range");
        else if (take_columns(batch, span_of(&kinds))) {
            Outcome is_filled = fill_batch(batch);
            if (is_filled == STOPPED)
                result = Py_NewRef(Py_None);
            else if (is_filled == DONE)
                result = result_of(batch);
        }
    }
    if (batch != NULL)
        free_batch(batch);
    if (has_offsets)
        PyBuffer_Release(&queue_offsets);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&log);
    return result;
}

/* -- walk_records ------------------------------------------------------------------------------ */

/* Whether a record begins here, with a size that ends before the bytes do. */
static bool read_sized(Cursor *log) {
    Cursor ahead = *log;
    uint32_t size, magic;
    return read_u32(&ahead, &size) && read_u32(&ahead, &magic) && is_record_magic(magic) &&
           size >= RECORD_BYTES_MIN && size <= INT32_MAX && read_bytes(log, size) != NULL;
}

PyObject *walk_records(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer data;
    long long position, last;
    Py_ssize_t count_max;
    if (!PyArg_ParseTuple(arguments, "y*LLn", &data, &position, &last, &count_max))
        return NULL;
    PyObject *result = NULL;
    Buffer starts = {0};
    Cursor log = cursor_of(span_of(&data));
    if (position < 0 || position > data.len || count_max < 0)
        PyErr_SetString(PyExc_ValueError, "walk_records() got an argument that is out of range");
    else {
        read_bytes(&log, (size_t)position);
        bool has_memory = true;
        for (int64_t at = position; count_max > 0 && at <= last; count_max--) {
            Cursor before = log;
            if (!read_sized(&log) || !(has_memory = buffer_add(&starts, &at, sizeof at)))
                break;
            int64_t size = (int64_t)span_between(before, log).size;
            /* Each size says where the next one is, so nothing else makes the next one come early. */
            prefetch(span_of(&data), at + WALKED_AHEAD_BYTES, size);
            position = at += size;
        }
        if (has_memory)
            result = Py_BuildValue("(NL)", buffer_bytes(&starts), position);
        else
            PyErr_NoMemory();
    }
    buffer_free(&starts);
    PyBuffer_Release(&data);
    return result;
}
