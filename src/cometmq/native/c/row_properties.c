#include "row_properties.h"

enum { NAME_END = 1, VALUE_END = 2 };

/* Read a value that is not empty, and the 0x02 behind it, which may be missing at the end. */
static inline bool read_value(Cursor *cursor, Span *value, uint64_t *bits) {
    int separator = read_to_separator(cursor, value, bits);
    return value->size != 0 && separator != NAME_END;
}

/* Read a property string that has the names of a shape; false where it has others. */
static bool read_expected(Span text, const Shape *shape, Span *values, uint64_t *bits) {
    Cursor cursor = cursor_of(text);
    for (size_t i = 0; i < shape->count; i++) {
        Span name = shape->names[i];
        if (!read_text(&cursor, (const char *)name.start, name.size) ||
            !read_byte(&cursor, NAME_END) || !read_value(&cursor, &values[i], bits))
            return false;
    }
    return bytes_left(&cursor) == 0;
}

static bool has_name(const Shape *shape, Span name) {
    for (size_t i = 0; i < shape->count; i++)
        if (is_equal(shape->names[i], name.start, name.size))
            return true;
    return false;
}

/* Add a name to a shape; false where it is there already. */
static bool add_name(Shape *shape, Span name) {
    if (shape->count == ROW_PROPERTIES_MAX || has_name(shape, name))
        return false;
    int number = (int)shape->count;
    if (is_equal(name, "TAGS", 4))
        shape->tags = number;
    else if (is_equal(name, "KEYS", 4))
        shape->keys = number;
    else if (is_equal(name, "UNIQ_KEY", 8))
        shape->uniq_key = number;
    shape->names[shape->count++] = name;
    return true;
}

bool read_row_properties(Span text, Shape *shape, Span *values, bool *has_changed, uint64_t *bits) {
    uint64_t seen = 0;
    *has_changed = !read_expected(text, shape, values, &seen);
    if (*has_changed) {
        seen = 0;
        *shape = (Shape){.tags = -1, .keys = -1, .uniq_key = -1};
        for (Cursor cursor = cursor_of(text); bytes_left(&cursor) != 0;) {
            Span name;
            if (read_to_separator(&cursor, &name, &seen) != NAME_END || name.size == 0 ||
                !add_name(shape, name) ||
                !read_value(&cursor, &values[shape->count - 1], &seen))
                return false;
        }
    }
    *bits |= seen;
    return true;
}
