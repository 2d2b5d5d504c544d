/* Gives hostile bytes to what the core has without Python: read_send, read_pull, read_record,
 * read_message_keys, read_row_properties, hashes.
 *
 *     pure_c CORPUS SEED SECONDS     mutate the files of a folder until the time is over
 *     pure_c --replay FILE           run one input
 *
 * The same corpus and seed give the same inputs in the same order.  An input that reaches a new
 * part of the core joins the corpus.  With clang the same checks run under libFuzzer, which brings
 * its own mutations (-DWITH_LIBFUZZER).
 */
#define _GNU_SOURCE
#include "hash.h"
#include "message_keys.h"
#include "pull_header.h"
#include "record.h"
#include "row_properties.h"
#include "send_header.h"

#include <dirent.h>
#include <stdio.h>
#include <time.h>

#include "mutate.h"
#include "scarce.h"

void __sanitizer_set_death_callback(void (*callback)(void));

enum { CORPUS_MAX = 8192 };

/* -- what holds for every input ---------------------------------------------------------------- */

static void fail(const char *what) {
    fprintf(stderr, "\nWRONG: %s\n", what);
    abort();
}

static bool lies_in(Span part, Span whole) {
    return part.start >= whole.start && part.size <= whole.size &&
           (size_t)(part.start - whole.start) <= whole.size - part.size;
}

static uint32_t crc32_bit_by_bit(Span span) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < span.size; i++) {
        crc ^= span.start[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

static void check_keys(Span text) {
    MessageKeys keys;
    if (!read_message_keys(text, &keys))
        return;
    const Span values[] = {keys.uniq_key, keys.keys, keys.tags};
    for (int i = 0; i < 3; i++)
        if (values[i].start != NULL && (values[i].size == 0 || !lies_in(values[i], text)))
            fail("a key lies outside the property string");
    java_hash(0, keys.tags.start == NULL ? keys.uniq_key : keys.tags);
}

/* Check the sends at the beginning; whether there is one. */
static bool check_frames(Span data, Buffer *text) {
    Cursor cursor = cursor_of(data);
    bool is_send = false;
    SendHeader send;
    Span body;
    while (read_send(&cursor, text, &send, &body)) {
        if (!lies_in(body, data) || !lies_in(send.topic, data) ||
            !(lies_in(send.properties, data) || lies_in(send.properties, buffer_span(text))))
            fail("a part of a send lies outside its bytes");
        if (!is_ascii(send.topic) || !is_ascii(send.properties))
            fail("a text is not ASCII");
        crc32_of(body);
        check_keys(send.properties);
        is_send = true;
    }
    if (bytes_left(&cursor) > data.size)
        fail("the cursor left its bytes");
    return is_send;
}

/* Check the properties of a row, with the names of the row before it and without them. */
static void check_properties(Span text, Shape *shape) {
    static Span values[ROW_PROPERTIES_MAX], again[ROW_PROPERTIES_MAX];
    Shape fresh = {.tags = -1, .keys = -1, .uniq_key = -1};
    bool has_changed;
    uint64_t bits = 0, other_bits = 0;
    bool is_read = read_row_properties(text, shape, values, &has_changed, &bits);
    if (is_read != read_row_properties(text, &fresh, again, &has_changed, &other_bits))
        fail("properties are plain only with, or without, the names of the row before");
    if (!is_read)
        return;
    if (shape->count != fresh.count || (bits & ~other_bits) != 0 || shape->tags != fresh.tags)
        fail("properties differ with the names of the row before");
    for (size_t i = 0; i < shape->count; i++) {
        Span name = fresh.names[i], value = values[i];
        if (!lies_in(name, text) || !lies_in(value, text) || value.size == 0 || name.size == 0 ||
            !is_equal(shape->names[i], name.start, name.size) || value.start != again[i].start ||
            value.size != again[i].size || memchr(value.start, 2, value.size) != NULL)
            fail("a property is not where it is");
    }
}

/* Check the pulls at the beginning; whether there is one. */
static bool check_pulls(Span data) {
    Cursor cursor = cursor_of(data);
    bool is_pull = false;
    for (PullHeader pull; read_pull(&cursor, &pull); is_pull = true)
        for (int field = 0; field < PULL_CHECKED_FIELDS; field++) {
            Span text = pull.checked[field];
            if (text.start != NULL && (!lies_in(text, data) || !is_ascii(text)))
                fail("a field of a pull lies outside its bytes, or is not ASCII");
        }
    if (bytes_left(&cursor) > data.size)
        fail("the cursor left its bytes");
    return is_pull;
}

/* Check the records at the beginning; whether there is one. */
static bool check_records(Span data) {
    Cursor cursor = cursor_of(data);
    Record record;
    bool is_record = false;
    Shape shape = {.tags = -1, .keys = -1, .uniq_key = -1};
    for (; read_record(&cursor, &record); is_record = true) {
        const Span parts[] = {record.born_host, record.store_host, record.body, record.topic,
                              record.properties};
        for (int i = 0; i < 5; i++)
            if (!lies_in(parts[i], record.bytes))
                fail("a part of a record lies outside of it");
        if (!lies_in(record.bytes, data))
            fail("a record lies outside the bytes");
        has_body_crc(&record);
        MessageKeys keys;
        find_message_keys(record.properties, &keys);
        check_properties(record.properties, &shape);
        const Span values[] = {keys.uniq_key, keys.keys, keys.tags};
        for (int i = 0; i < 3; i++)
            if (values[i].size != 0 && !lies_in(values[i], record.properties))
                fail("a key lies outside the property string");
        uint32_t hashes[STORED_KEYS_MAX];
        if (hash_stored_keys(java_hash_utf8(0, record.topic), &keys, hashes) > STORED_KEYS_MAX)
            fail("more hashes than there is room for");
    }
    return is_record;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static bool is_prepared;
    static Buffer text;
    if (!is_prepared)
        crc32_prepare();
    is_prepared = true;
    Span data = {bytes, size};
    /* The last byte of some inputs decides when memory is scarce. */
    calls_until_scarce = size != 0 && bytes[size - 1] < 4 ? bytes[size - 1] : -1;
    bool is_send = check_frames(data, &text);
    buffer_free(&text);
    calls_until_scarce = -1;
    if (is_send || check_pulls(data) || check_records(data))
        return 0;
    /* Text behind the lengths of a frame, of which some is enough. */
    Cursor cursor = cursor_of(data);
    read_bytes(&cursor, 8);
    Span rest = read_rest(&cursor);
    check_keys(rest);
    rest.size = rest.size < 64 ? rest.size : 64;
    java_hash_utf8(7, rest);
    if (crc32_of(rest) != crc32_bit_by_bit(rest))
        fail("crc32_of differs from the definition");
    return 0;
}

#ifndef WITH_LIBFUZZER

/* -- the run ----------------------------------------------------------------------------------- */

static Input corpus[CORPUS_MAX];
static size_t corpus_count;

static Input now;
static uint64_t execution_count;

static void tell_input(void) {
    fprintf(stderr, "execution %llu, input ", (unsigned long long)execution_count);
    for (size_t i = 0; i < now.size; i++)
        fprintf(stderr, "%02x", now.bytes[i]);
    fprintf(stderr, "\n");
}

/* Run an input in bytes of exactly its size, so that a step beyond them is seen. */
static void run_input(const uint8_t *bytes, size_t size) {
    now = (Input){malloc(size), size};
    if (size != 0)
        memcpy(now.bytes, bytes, size);
    execution_count++;
    LLVMFuzzerTestOneInput(now.bytes, now.size);
    free(now.bytes);
}

static void keep(const uint8_t *bytes, size_t size) {
    if (corpus_count == CORPUS_MAX)
        return;
    uint8_t *copy = malloc(size + 1);
    memcpy(copy, bytes, size);
    corpus[corpus_count++] = (Input){copy, size};
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static void load_file(const char *path) {
    uint8_t bytes[INPUT_BYTES_MAX];
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(2);
    }
    keep(bytes, fread(bytes, 1, sizeof bytes, file));
    fclose(file);
}

static void load_corpus(const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, is_visible, alphasort);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        load_file(path);
        free(entries[i]);
    }
    free(entries);
}

static double processor_seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

int main(int count, char **arguments) {
    __sanitizer_set_death_callback(tell_input);
    if (count == 3 && strcmp(arguments[1], "--replay") == 0) {
        load_file(arguments[2]);
        run_input(corpus[0].bytes, corpus[0].size);
        return 0;
    }
    if (count != 4)
        return 2;
    load_corpus(arguments[1]);
    seed_chance(strtoull(arguments[2], NULL, 10));
    struct timespec start, stop;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (size_t i = 0, end = corpus_count; i < end; i++)
        run_input(corpus[i].bytes, corpus[i].size);
    uint8_t bytes[INPUT_BYTES_MAX];
    do {
        for (int i = 0; i < 4096; i++) {
            const Input *base = &corpus[chance((uint32_t)corpus_count)];
            memcpy(bytes, base->bytes, base->size);
            size_t size =
                mutate(bytes, base->size, corpus[chance((uint32_t)corpus_count)], true);
            is_new = false;
            run_input(bytes, size);
            if (is_new)
                keep(bytes, size);
        }
        clock_gettime(CLOCK_MONOTONIC, &stop);
    } while ((double)(stop.tv_sec - start.tv_sec) < atof(arguments[3]));
    printf("{\"executions\": %llu, \"processor_seconds\": %.1f, \"corpus\": %zu}\n",
           (unsigned long long)execution_count, processor_seconds(), corpus_count);
    return 0;
}

#endif
