/* Writes heads of answers of pulls (docs/internals/protocol.md#pulling). */
#define PY_SSIZE_T_CLEAN
#include "pull_answer.h"

enum { JSON_PARTS = 5, BINARY_PARTS = 6 };
enum { FRAME_HEAD_BYTES = 8, FRAME_BYTES_MAX = 16777216, SERIALIZE_BINARY = 1 };

/* Write a part; false with an exception. */
static bool put_part(Buffer *head, PyObject *parts, Py_ssize_t index) {
    char *bytes;
    Py_ssize_t size;
    PyObject *part = PyTuple_GetItem(parts, index);
    if (part == NULL || PyBytes_AsStringAndSize(part, &bytes, &size) < 0)
        return false;
    if (!buffer_add(head, bytes, (size_t)size))
        return PyErr_NoMemory(), false;
    return true;
}

static bool put_u32(Buffer *head, uint32_t value) {
    uint8_t bytes[4];
    store_u32(bytes, value);
    if (!buffer_add(head, bytes, sizeof bytes))
        return PyErr_NoMemory(), false;
    return true;
}

/* Write a decimal number, in a binary header behind its length. */
static bool add_number(Buffer *head, int64_t number, bool has_length) {
    uint8_t digits[20];
    size_t size = (size_t)(put_number(digits, number) - digits);
    if (has_length && !put_u32(head, (uint32_t)size))
        return false;
    if (!buffer_add(head, digits, size))
        return PyErr_NoMemory(), false;
    return true;
}

static bool put_json(Buffer *head, PyObject *parts, const PullAnswer *answer) {
    const int64_t numbers[] = {answer->max_offset, answer->min_offset, answer->next_offset,
                               answer->opaque};
    for (int i = 0; i < JSON_PARTS - 1; i++)
        if (!put_part(head, parts, i) || !add_number(head, numbers[i], false))
            return false;
    return put_part(head, parts, JSON_PARTS - 1);
}

static bool put_binary(Buffer *head, PyObject *parts, const PullAnswer *answer) {
    const int64_t numbers[] = {answer->next_offset, answer->min_offset, answer->max_offset};
    if (!put_part(head, parts, 0) || !put_u32(head, (uint32_t)answer->opaque) ||
        !put_part(head, parts, 1))
        return false;
    size_t ext = head->size;
    if (!put_u32(head, 0))
        return false;
    for (int i = 0; i < 3; i++)
        if (!put_part(head, parts, 2 + i) || !add_number(head, numbers[i], true))
            return false;
    if (!put_part(head, parts, BINARY_PARTS - 1))
        return false;
    store_u32(head->bytes + ext, (uint32_t)(head->size - ext - 4));
    return true;
}

int put_pull_head(Buffer *head, PyObject *parts, const PullAnswer *answer) {
    Py_ssize_t count = PyTuple_Size(parts);
    if (count != JSON_PARTS && count != BINARY_PARTS) {
        PyErr_SetString(PyExc_ValueError, "answer_pull() takes five or six parts of a header");
        return -1;
    }
    bool is_binary = count == BINARY_PARTS;
    if (!put_u32(head, 0) || !put_u32(head, 0) ||
        !(is_binary ? put_binary : put_json)(head, parts, answer))
        return -1;
    size_t header_bytes = head->size - FRAME_HEAD_BYTES;
    if ((uint64_t)answer->body_bytes + head->size > FRAME_BYTES_MAX)
        return 0;
    store_u32(head->bytes, (uint32_t)(4 + header_bytes + (size_t)answer->body_bytes));
    store_u32(head->bytes + 4,
              (uint32_t)(is_binary ? SERIALIZE_BINARY : 0) << 24 | (uint32_t)header_bytes);
    return 1;
}
