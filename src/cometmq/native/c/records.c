/* gather_records: the records of a pull, from the units of a queue to one body; answer_pull: the
 * same to the frame of the answer.
 *
 * It chooses units by count, size and tag code as `select_units` of store/log/record_runs.py does,
 * asks Python for the bytes of the log around their records, compares each record with its unit,
 * and copies the records into one body.  It stops at a unit that is not valid or leads to an
 * extension unit, at records that lie far apart or are not in memory, and at a record that is not
 * the unit's; Python then reads unit by unit, and mends.
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "pull_answer.h"

enum {
    UNIT_BYTES = 20,
    /* Total size, magic, and behind other fields the physical offset. */
    CHECKED_BYTES = 36,
    PHYSICAL_OFFSET_POSITION = 28,
    /* As _FILTER_BLOCK_UNITS: a unit that is not valid stops all of its block. */
    BLOCK_UNITS = 64,
    /* More wanted tags than this stop. */
    CODES_MAX = 32,
};

static const uint32_t MAGIC_V1 = 0xDAA320A7u, MAGIC_V2 = 0xDAA320ABu;
/* A code up to this one is the address of an extension unit. */
static const int64_t EXT_ADDRESS_MAX = -2147483649LL;

/* A record that belongs into the body. */
typedef struct {
    int64_t position;
    int64_t size;
} Pick;

typedef struct {
    int64_t codes[CODES_MAX];
    size_t code_count;
    bool has_codes;
    size_t max_count;
    int64_t max_bytes;
    /* Picks, one behind the other. */
    Buffer picks;
    size_t count;
    size_t examined;
    int64_t byte_count;
    int64_t start, end;
} Gathering;

/* Take the wanted codes from a set or None; 1: done, 0: stop, -1: an exception. */
static int take_codes(Gathering *gathering, PyObject *codes) {
    if (codes == Py_None)
        return 1;
    gathering->has_codes = true;
    Py_ssize_t count = PyObject_Size(codes);
    if (count < 0 || count > CODES_MAX)
        return count < 0 ? -1 : 0;
    PyObject *iterator = PyObject_GetIter(codes);
    if (iterator == NULL)
        return -1;
    PyObject *code;
    while (gathering->code_count < CODES_MAX && (code = PyIter_Next(iterator)) != NULL) {
        gathering->codes[gathering->code_count++] = PyLong_AsLongLong(code);
        Py_DECREF(code);
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? -1 : 1;
}

static bool is_wanted(const Gathering *gathering, int64_t code) {
    if (!gathering->has_codes)
        return true;
    for (size_t i = 0; i < gathering->code_count; i++)
        if (gathering->codes[i] == code)
            return true;
    return false;
}

/* Whether the next units, a block at most, are valid and lead to no extension unit. */
static bool are_plain(const Gathering *gathering, Cursor units) {
    if (!gathering->has_codes)
        return true;
    const uint8_t *unit;
    for (int i = 0; i < BLOCK_UNITS && (unit = read_bytes(&units, UNIT_BYTES)) != NULL; i++)
        if ((int32_t)load_u32(unit + 8) <= 0 || (int64_t)load_u64(unit + 12) <= EXT_ADDRESS_MAX)
            return false;
    return true;
}

/* Pick the units that are wanted, up to the limits; 1: done, 0: stop, -1: an exception. */
static int pick_units(Gathering *gathering, Cursor units) {
    for (size_t i = 0;; i++) {
        if (i % BLOCK_UNITS == 0 && !are_plain(gathering, units))
            return 0;
        const uint8_t *unit = read_bytes(&units, UNIT_BYTES);
        if (unit == NULL)
            return 1;
        Pick pick = {(int64_t)load_u64(unit), (int32_t)load_u32(unit + 8)};
        if (is_wanted(gathering, (int64_t)load_u64(unit + 12))) {
            if (gathering->count != 0 && (gathering->count >= gathering->max_count ||
                                          gathering->byte_count + pick.size > gathering->max_bytes))
                return 1;
            if (pick.size < CHECKED_BYTES || pick.position < 0 ||
                pick.position > INT64_MAX - pick.size ||
                (gathering->count != 0 && pick.position < gathering->end))
                return 0;
            if (gathering->count++ == 0)
                gathering->start = pick.position;
            gathering->end = pick.position + pick.size;
            gathering->byte_count += pick.size;
            if (!buffer_add(&gathering->picks, &pick, sizeof pick))
                return PyErr_NoMemory(), -1;
        }
        gathering->examined = i + 1;
    }
}

/* Whether bytes, at least CHECKED_BYTES, are the record of a unit. */
static bool is_record(const uint8_t *record, const Pick *pick) {
    uint32_t magic = load_u32(record + 4);
    return load_u32(record) == (uint32_t)pick->size && (magic == MAGIC_V1 || magic == MAGIC_V2) &&
           load_u64(record + PHYSICAL_OFFSET_POSITION) == (uint64_t)pick->position;
}

/* Compare the records with their units and copy them to `body`, if there is one. */
static bool copy_records(const Gathering *gathering, Span around, uint8_t *body) {
    Cursor log = cursor_of(around), picks = cursor_of(buffer_span(&gathering->picks));
    int64_t position = gathering->start;
    const uint8_t *next;
    while ((next = read_bytes(&picks, sizeof(Pick))) != NULL) {
        Pick pick;
        memcpy(&pick, next, sizeof pick);
        if (read_bytes(&log, (size_t)(pick.position - position)) == NULL)
            return false;
        const uint8_t *record = read_bytes(&log, (size_t)pick.size);
        position = pick.position + pick.size;
        if (record == NULL || !is_record(record, &pick))
            return false;
        if (body != NULL) {
            memcpy(body, record, (size_t)pick.size);
            body += pick.size;
        }
    }
    return true;
}

/* The body, from the bytes of the log between the first and the last record; None: stop. */
static PyObject *body_of(const Gathering *gathering, PyObject *around) {
    Py_buffer bytes;
    if (around == Py_None)
        Py_RETURN_NONE;
    if (PyObject_GetBuffer(around, &bytes, PyBUF_SIMPLE) < 0)
        return NULL;
    int64_t span = gathering->end - gathering->start;
    bool is_adjacent = span == gathering->byte_count;
    Span log = {bytes.buf, (size_t)bytes.len};
    PyObject *body = NULL;
    if (bytes.len != span)
        body = Py_NewRef(Py_None);
    else if (is_adjacent)
        /* The log has the body as it is: no copy. */
        body = Py_NewRef(copy_records(gathering, log, NULL) ? around : Py_None);
    else {
        body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)gathering->byte_count);
        if (body != NULL && !copy_records(gathering, log, (uint8_t *)PyBytes_AsString(body))) {
            Py_DECREF(body);
            body = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&bytes);
    return body;
}

static int choose(Gathering *gathering, PyObject *units, Py_ssize_t first, Py_ssize_t count) {
    Py_buffer bytes;
    if (PyObject_GetBuffer(units, &bytes, PyBUF_SIMPLE) < 0)
        return -1;
    int result = -1;
    if (first < 0 || count < 0 || first > bytes.len / UNIT_BYTES ||
        count > bytes.len / UNIT_BYTES - first)
        PyErr_SetString(PyExc_ValueError, "gather_records() got fewer units than it shall read");
    else {
        Cursor cursor = cursor_of((Span){bytes.buf, (size_t)bytes.len});
        read_bytes(&cursor, (size_t)first * UNIT_BYTES);
        size_t size = (size_t)count * UNIT_BYTES;
        result = pick_units(gathering, cursor_of((Span){read_bytes(&cursor, size), size}));
    }
    /* Before Python runs again: a queue's tail cannot change while its bytes are borrowed. */
    PyBuffer_Release(&bytes);
    return result;
}

/* The bytes of the log around the records; None stops. */
static PyObject *read_around(const Gathering *gathering, PyObject *read, long long span_max) {
    int64_t span = gathering->end - gathering->start;
    if (span > span_max && span != gathering->byte_count)
        Py_RETURN_NONE;
    return PyObject_CallFunction(read, "LL", (long long)gathering->start, (long long)span);
}

static PyObject *gather(const Gathering *gathering, PyObject *read, long long span_max) {
    PyObject *body;
    if (gathering->count == 0)
        body = PyBytes_FromStringAndSize(NULL, 0);
    else {
        PyObject *around = read_around(gathering, read, span_max);
        if (around == NULL)
            return NULL;
        body = body_of(gathering, around);
        Py_DECREF(around);
    }
    if (body == NULL || body == Py_None)
        return body;
    return Py_BuildValue("(Nnn)", body, (Py_ssize_t)gathering->count,
                         (Py_ssize_t)gathering->examined);
}

/* The frame of an answer: its head, then the records; None: stop. */
static PyObject *frame_of(const Gathering *gathering, Span head, PyObject *around) {
    Py_buffer bytes;
    if (around == Py_None)
        Py_RETURN_NONE;
    if (PyObject_GetBuffer(around, &bytes, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *frame = NULL;
    size_t body_bytes = (size_t)gathering->byte_count;
    if (bytes.len != gathering->end - gathering->start)
        frame = Py_NewRef(Py_None);
    else
        frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(head.size + body_bytes));
    if (frame != NULL && frame != Py_None) {
        uint8_t *body = put_span((uint8_t *)PyBytes_AsString(frame), head);
        if (!copy_records(gathering, (Span){bytes.buf, (size_t)bytes.len}, body)) {
            Py_DECREF(frame);
            frame = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&bytes);
    return frame;
}

static PyObject *answer(const Gathering *gathering, PyObject *read, long long span_max,
                        PyObject *parts, PullAnswer *pull) {
    Buffer head = {0};
    PyObject *frame = NULL;
    if (gathering->count == 0)
        Py_RETURN_NONE;
    PyObject *around = read_around(gathering, read, span_max);
    if (around == NULL)
        return NULL;
    pull->next_offset += (int64_t)gathering->examined;
    pull->body_bytes = gathering->byte_count;
    int is_put = put_pull_head(&head, parts, pull);
    if (is_put == 1)
        frame = frame_of(gathering, buffer_span(&head), around);
    else if (is_put == 0)
        frame = Py_NewRef(Py_None);
    buffer_free(&head);
    Py_DECREF(around);
    if (frame == NULL || frame == Py_None)
        return frame;
    return Py_BuildValue("(NnnL)", frame, (Py_ssize_t)gathering->count,
                         (Py_ssize_t)gathering->examined, (long long)gathering->byte_count);
}

/* Choose the records; 1: done, 0: stop, -1: an exception. */
static int open_gathering(Gathering *gathering, PyObject *units, Py_ssize_t first,
                          Py_ssize_t count, PyObject *codes, long long max_count,
                          long long max_bytes) {
    if (max_count < 1) {
        PyErr_SetString(PyExc_ValueError, "at least one record has to be asked for");
        return -1;
    }
    gathering->max_count = (size_t)max_count;
    gathering->max_bytes = max_bytes;
    int is_chosen = take_codes(gathering, codes);
    return is_chosen == 1 ? choose(gathering, units, first, count) : is_chosen;
}

PyObject *gather_records(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *units, *codes, *read, *result = NULL;
    Py_ssize_t first, count;
    long long max_count, max_bytes, span_max;
    if (!PyArg_ParseTuple(arguments, "OnnOLLLO", &units, &first, &count, &codes, &max_count,
                          &max_bytes, &span_max, &read))
        return NULL;
    Gathering gathering = {0};
    int is_chosen = open_gathering(&gathering, units, first, count, codes, max_count, max_bytes);
    if (is_chosen == 1)
        result = gather(&gathering, read, span_max);
    else if (is_chosen == 0)
        result = Py_NewRef(Py_None);
    buffer_free(&gathering.picks);
    return result;
}

PyObject *answer_pull(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *units, *codes, *read, *parts, *result = NULL;
    Py_ssize_t first, count;
    long long max_count, max_bytes, span_max, next_offset, min_offset, max_offset;
    int opaque;
    if (!PyArg_ParseTuple(arguments, "OnnOLLLOO!iLLL", &units, &first, &count, &codes, &max_count,
                          &max_bytes, &span_max, &read, &PyTuple_Type, &parts, &opaque,
                          &next_offset, &min_offset, &max_offset))
        return NULL;
    Gathering gathering = {0};
    PullAnswer pull = {
        .opaque = opaque,
        .next_offset = next_offset,
        .min_offset = min_offset,
        .max_offset = max_offset,
    };
    int is_chosen = open_gathering(&gathering, units, first, count, codes, max_count, max_bytes);
    if (is_chosen == 1)
        result = answer(&gathering, read, span_max, parts, &pull);
    else if (is_chosen == 0)
        result = Py_NewRef(Py_None);
    buffer_free(&gathering.picks);
    return result;
}
