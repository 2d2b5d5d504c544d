/* encode_send_request and take_send_answers: the frames of a client's sends, and their answers.
 *
 * encode_send_request writes the bytes of SendRequestTemplate.encode of wire/header/fast_encode.py.  It
 * stops at properties with another control character than those that separate properties, with a
 * quotation mark or a backslash.
 *
 * take_send_answers reads what FrameReader and decode_plain_answer read of a JSON answer with
 * code 0 and without a body, and takes the token of its request.  It stops at the first frame that
 * is not whole or not such an answer, and at one whose request is not a plain send.
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "json.h"

enum {
    FRAME_BYTES_MAX = 16777216,
    HEAD_BYTES = 8,
    /* More digits than a 64-bit number and its sign have. */
    NUMBER_BYTES_MAX = 24,
    NUMBERS = 5,
};

/* -- encode_send_request ------------------------------------------------------------------------------- */

static bool add_text(Buffer *out, const char *text) {
    return buffer_add(out, text, strlen(text));
}

static bool add_number(Buffer *out, long long number) {
    char digits[NUMBER_BYTES_MAX];
    size_t first = sizeof digits;
    unsigned long long rest = number < 0 ? 0 - (unsigned long long)number
                                         : (unsigned long long)number;
    do {
        digits[--first] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest != 0);
    if (number < 0)
        digits[--first] = '-';
    return buffer_add(out, digits + first, sizeof digits - first);
}

/* Add a JSON string; 1: done, 0: it has a character that needs another escape, -1: no memory. */
static int add_properties(Buffer *out, Span text) {
    static const char hex[] = "0123456789abcdef";
    enum { ESCAPED_BYTES = 6 };
    if (text.size > FRAME_BYTES_MAX || buffer_room(out, text.size * ESCAPED_BYTES + 2) == NULL)
        return text.size > FRAME_BYTES_MAX ? 0 : -1;
    uint8_t *at = out->bytes + out->size;
    *at++ = '"';
    Cursor cursor = cursor_of(text);
    for (int byte; (byte = take_byte(&cursor)) >= 0;) {
        if (byte == '"' || byte == '\\')
            return 0;
        if (byte >= 0x20) {
            *at++ = (uint8_t)byte;
        } else if (byte == 1 || byte == 2) {
            memcpy(at, "\\u000", ESCAPED_BYTES - 1);
            at[ESCAPED_BYTES - 1] = (uint8_t)hex[byte];
            at += ESCAPED_BYTES;
        } else {
            return 0;
        }
    }
    *at++ = '"';
    out->size = (size_t)(at - out->bytes);
    return 1;
}

/* The header in `out`, behind room for the head of the frame; 1, 0 or -1 as add_properties. */
static int write_header(Buffer *out, const Span parts[3], const long long numbers[NUMBERS],
                        Span properties) {
    static const char *const names[] = {",\"e\":\"", "\",\"f\":\"", "\",\"g\":\"", "\",\"h\":\""};
    bool has_room = buffer_add(out, "\0\0\0\0\0\0\0", HEAD_BYTES) &&
                    buffer_add(out, parts[0].start, parts[0].size);
    for (int i = 0; i < NUMBERS - 1; i++)
        has_room = has_room && add_text(out, names[i]) && add_number(out, numbers[i]);
    if (!has_room || !add_text(out, "\",\"i\":"))
        return -1;
    int result = add_properties(out, properties);
    if (result != 1)
        return result;
    return add_text(out, ",\"j\":\"0") && buffer_add(out, parts[1].start, parts[1].size) &&
                   add_number(out, numbers[NUMBERS - 1]) &&
                   buffer_add(out, parts[2].start, parts[2].size)
               ? 1
               : -1;
}

PyObject *encode_send_request(PyObject *module, PyObject *arguments) {
    (void)module;
    const char *parts[3];
    Py_ssize_t sizes[3];
    long long numbers[NUMBERS];
    PyObject *properties, *body;
    if (!PyArg_ParseTuple(arguments, "(y#y#y#)LLLLLUS", &parts[0], &sizes[0], &parts[1],
                          &sizes[1], &parts[2], &sizes[2], &numbers[4], &numbers[0], &numbers[1],
                          &numbers[2], &numbers[3], &properties, &body)) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return NULL;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    Py_ssize_t text_bytes, body_bytes;
    char *body_start;
    const char *text = PyUnicode_AsUTF8AndSize(properties, &text_bytes);
    if (text == NULL) {
        /* Half a surrogate pair, which Python names. */
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (PyBytes_AsStringAndSize(body, &body_start, &body_bytes) < 0)
        return NULL;
    Span spans[3];
    for (int i = 0; i < 3; i++)
        spans[i] = (Span){(const uint8_t *)parts[i], (size_t)sizes[i]};
    Buffer out = {0};
    int result =
        write_header(&out, spans, numbers, (Span){(const uint8_t *)text, (size_t)text_bytes});
    size_t length = out.size - 4 + (size_t)body_bytes;
    if (result == 1 && length > FRAME_BYTES_MAX - 4)
        result = 0;
    PyObject *frame = NULL;
    if (result == 1) {
        store_u32(out.bytes, (uint32_t)length);
        store_u32(out.bytes + 4, (uint32_t)(out.size - HEAD_BYTES));
        frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)out.size + body_bytes);
        if (frame != NULL) {
            uint8_t *bytes = (uint8_t *)PyBytes_AsString(frame);
            memcpy(bytes, out.bytes, out.size);
            memcpy(bytes + out.size, body_start, (size_t)body_bytes);
        }
    } else if (result == 0) {
        frame = Py_NewRef(Py_None);
    } else {
        PyErr_NoMemory();
    }
    buffer_free(&out);
    return frame;
}

/* -- take_send_answers ------------------------------------------------------------------------- */

/* What matters of an answer; a text that is absent starts at NULL. */
typedef struct {
    int32_t opaque;
    int32_t queue_id;
    int64_t queue_offset;
    Span message_id, transaction_id, recall_handle, barrier;
} Answer;

enum {
    MESSAGE_ID = 1,
    QUEUE_ID = 2,
    QUEUE_OFFSET = 4,
    TRANSACTION_ID = 8,
    RECALL_HANDLE = 16,
    BARRIER = 32,
    NEEDED_FIELDS = MESSAGE_ID | QUEUE_ID | QUEUE_OFFSET,
};

static unsigned field_of(Span name) {
    static const struct {
        const char *name;
        unsigned field;
    } fields[] = {
        {"msgId", MESSAGE_ID},
        {"queueId", QUEUE_ID},
        {"queueOffset", QUEUE_OFFSET},
        {"transactionId", TRANSACTION_ID},
        {"recallHandle", RECALL_HANDLE},
        {"cmqBarrier", BARRIER},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (is_equal(name, fields[i].name, strlen(fields[i].name)))
            return fields[i].field;
    return 0;
}

static bool take_field(Answer *answer, unsigned field, Span value) {
    Cursor cursor = cursor_of(value);
    switch (field) {
    case MESSAGE_ID:
        answer->message_id = value;
        return true;
    case QUEUE_ID:
        return read_int32(&cursor, &answer->queue_id) && bytes_left(&cursor) == 0;
    case QUEUE_OFFSET:
        return read_number(&cursor, &answer->queue_offset) && bytes_left(&cursor) == 0;
    case TRANSACTION_ID:
        answer->transaction_id = value;
        return true;
    case RECALL_HANDLE:
        answer->recall_handle = value;
        return true;
    default:
        answer->barrier = value;
        return true;
    }
}

static bool read_fields(Cursor *cursor, Answer *answer) {
    unsigned seen = 0;
    if (!read_byte(cursor, '{'))
        return false;
    do {
        Span name, value;
        if (!read_plain_string(cursor, &name) || !read_byte(cursor, ':'))
            return false;
        unsigned field = field_of(name);
        if (field == 0) {
            if (!skip_scalar(cursor))
                return false;
            continue;
        }
        if (seen & field || !read_plain_string(cursor, &value) ||
            !take_field(answer, field, value))
            return false;
        seen |= field;
    } while (read_byte(cursor, ','));
    return read_byte(cursor, '}') && (seen & NEEDED_FIELDS) == NEEDED_FIELDS;
}

enum { CODE = 1, EXT = 2, FLAG = 4, OPAQUE = 8, LANGUAGE = 16, REMARK = 32, VERSION = 64 };

static unsigned key_of(Span name) {
    static const struct {
        const char *name;
        unsigned key;
    } keys[] = {
        {"code", CODE},         {"extFields", EXT}, {"flag", FLAG},       {"opaque", OPAQUE},
        {"language", LANGUAGE}, {"remark", REMARK}, {"version", VERSION},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (is_equal(name, keys[i].name, strlen(keys[i].name)))
            return keys[i].key;
    return 0;
}

/* Read the value of a key; false where it is not that of a success. */
static bool read_value(Cursor *cursor, unsigned key, Answer *answer) {
    int32_t number;
    Span text;
    switch (key) {
    case CODE:
        return read_int32(cursor, &number) && number == 0;
    case EXT:
        return read_fields(cursor, answer);
    case FLAG:
        return read_int32(cursor, &number) && number == 1;
    case OPAQUE:
        return read_int32(cursor, &answer->opaque);
    case LANGUAGE:
        return read_plain_string(cursor, &text);
    case REMARK:
        return read_text(cursor, "null", 4);
    case VERSION:
        return read_int32(cursor, &number);
    default:
        return skip_scalar(cursor);
    }
}

static bool read_answer_header(Span header, Answer *answer) {
    unsigned seen = 0;
    Cursor cursor = cursor_of(header);
    if (!read_byte(&cursor, '{'))
        return false;
    do {
        Span name;
        if (!read_plain_string(&cursor, &name) || !read_byte(&cursor, ':'))
            return false;
        unsigned key = key_of(name);
        if (seen & key || !read_value(&cursor, key, answer))
            return false;
        seen |= key;
    } while (read_byte(&cursor, ','));
    const unsigned needed = CODE | EXT | FLAG | OPAQUE;
    return read_byte(&cursor, '}') && bytes_left(&cursor) == 0 && (seen & needed) == needed;
}

/* Read the frame that comes next; false where it is not a plain answer. */
static bool read_answer(Cursor *cursor, Answer *answer) {
    uint32_t length, packed;
    if (!read_u32(cursor, &length) || !read_u32(cursor, &packed))
        return false;
    /* JSON is type 0, and there is no body. */
    if (length < 4 || length > FRAME_BYTES_MAX - 4 || packed != length - 4)
        return false;
    Span header = {read_bytes(cursor, packed), packed};
    *answer = (Answer){0};
    return header.start != NULL && read_answer_header(header, answer);
}

static PyObject *text_or_none(Span text) {
    if (text.start == NULL)
        return Py_NewRef(Py_None);
    return PyUnicode_FromStringAndSize((const char *)text.start, (Py_ssize_t)text.size);
}

static PyObject *new_answer(PyObject *type, const Answer *answer) {
    PyObject *fields = Py_BuildValue(
        "(s#iLNNN)", (const char *)answer->message_id.start, (Py_ssize_t)answer->message_id.size,
        (int)answer->queue_id, (long long)answer->queue_offset,
        text_or_none(answer->transaction_id), text_or_none(answer->recall_handle),
        text_or_none(answer->barrier));
    if (fields == NULL)
        return NULL;
    PyObject *made = PyObject_Call(type, fields, NULL);
    Py_DECREF(fields);
    return made;
}

typedef struct {
    PyObject *waiting, *taken;
    PyTypeObject *token_type;
    PyObject *answer_type;
} Taking;

/* Take the request of an answer; 1: done, 0: stop, -1: an exception, and it was not taken. */
static int take(Taking *taking, const Answer *answer) {
    PyObject *opaque = PyLong_FromLong(answer->opaque);
    if (opaque == NULL)
        return -1;
    int result = -1;
    PyObject *pair = NULL, *made = NULL;
    PyObject *entry = PyDict_GetItemWithError(taking->waiting, opaque);
    bool has_token = entry != NULL && PyTuple_Check(entry) && PyTuple_Size(entry) > 0;
    PyObject *token = has_token ? PyTuple_GetItem(entry, 0) : NULL;
    if (token == NULL)
        result = PyErr_Occurred() ? -1 : 0;
    else if (!PyType_IsSubtype(Py_TYPE(token), taking->token_type))
        result = 0;
    else if ((made = new_answer(taking->answer_type, answer)) != NULL &&
             (pair = PyTuple_Pack(2, token, made)) != NULL &&
             PyList_Append(taking->taken, pair) == 0) {
        /* Behind all that may fail: it is either waiting or taken. */
        result = PyDict_DelItem(taking->waiting, opaque) == 0 ? 1 : -1;
    }
    Py_XDECREF(pair);
    Py_XDECREF(made);
    Py_DECREF(opaque);
    return result;
}

PyObject *take_send_answers(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *data;
    Taking taking;
    char *start;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "SO!O!O!O", &data, &PyDict_Type, &taking.waiting,
                          &PyList_Type, &taking.taken, &PyType_Type, &taking.token_type,
                          &taking.answer_type) ||
        PyBytes_AsStringAndSize(data, &start, &size) < 0)
        return NULL;
    const Cursor first = cursor_of((Span){(const uint8_t *)start, (size_t)size});
    Cursor cursor = first, done = first;
    int result = 1;
    Answer answer;
    while (result == 1 && read_answer(&cursor, &answer)) {
        result = take(&taking, &answer);
        if (result == 1)
            done = cursor;
    }
    return result < 0 ? NULL : PyLong_FromSsize_t((Py_ssize_t)span_between(first, done).size);
}
