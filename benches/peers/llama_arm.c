// The llama.cpp arm, on the library and headers of the installed llama-cpp-python.
//
//   llama_arm rates  MODEL THREADS CTX DEPTH REPEAT TEST,TEST SEED   rates of pp<N> and tg<N>, as `anemone bench`
//   llama_arm first  MODEL THREADS CTX PROMPT                        one greedy token after PROMPT, then timings
//   llama_arm logits MODEL THREADS CTX STEP OUT ID,ID,...            raw f32 logits of all positions, STEP at a time
//
// Every mode prints one JSON object as its last line. All options that are not arguments are the library's defaults
// (memory map, flash attention where it thinks best), but batch and micro-batch, which are 512.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llama.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fail(const char *what, const char *remedy) {
    fprintf(stderr, "llama_arm: %s; %s\n", what, remedy);
    exit(1);
}

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int number(const char *text, const char *name, int low, int high) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < low || value > high) {
        fprintf(stderr, "llama_arm: %s is %s; give a number from %d to %d\n", name, text, low, high);
        exit(2);
    }
    return (int)value;
}

struct arm {
    struct llama_model *model;
    struct llama_context *context;
    int vocab;
    double load_seconds, context_seconds;
};

static struct arm load(const char *path, int threads, int ctx) {
    struct arm arm;
    double start = now();
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params model = llama_model_default_params();
    if (getenv("ARM_PLAIN")) model.use_extra_bufts = false;
    arm.model = llama_model_load_from_file(path, model);
    if (!arm.model) fail("the model did not load", "convert it again");
    arm.load_seconds = now() - start;
    start = now();
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = ctx;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = threads;
    arm.context = llama_init_from_model(arm.model, params);
    if (!arm.context) fail("no context", "lower CTX");
    arm.context_seconds = now() - start;
    arm.vocab = llama_vocab_n_tokens(llama_model_get_vocab(arm.model));
    return arm;
}

// At most 512 tokens; leaves the logits of the last one.
static void feed(const struct arm *arm, llama_token *tokens, int count) {
    if (llama_decode(arm->context, llama_batch_get_one(tokens, count))) fail("llama_decode failed", "raise CTX");
    llama_synchronize(arm->context);
}

static void feed_all(const struct arm *arm, llama_token *tokens, int count) {
    for (int i = 0; i < count; i += 512) feed(arm, tokens + i, count - i < 512 ? count - i : 512);
}

// The token ids of `anemone bench --seed`.
static void random_tokens(llama_token *out, int count, uint64_t state, int vocab) {
    for (int i = 0; i < count; i++) {
        state += 0x9e3779b97f4a7c15u;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        out[i] = (llama_token)((z ^ (z >> 31)) % (uint64_t)vocab);
    }
}

static void print_memory(void) {
    static const char *keys[][2] = {{"VmRSS", "rss_bytes"}, {"RssAnon", "rss_anon_bytes"}, {"RssFile", "rss_file_bytes"}};
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        for (int i = 0; i < 3; i++) {
            size_t length = strlen(keys[i][0]);
            if (!strncmp(line, keys[i][0], length) && line[length] == ':')
                printf(", \"%s\": %lld", keys[i][1], 1024 * strtoll(line + length + 1, NULL, 10));
        }
    }
    if (file) fclose(file);
}

static int rates(int argc, char **argv) {
    if (argc != 9) return 2;
    int threads = number(argv[3], "THREADS", 1, 512), ctx = number(argv[4], "CTX", 1, 1 << 20);
    int depth = number(argv[5], "DEPTH", 0, ctx - 1), repeat = number(argv[6], "REPEAT", 1, 10000);
    struct arm arm = load(argv[2], threads, ctx);
    llama_memory_t memory = llama_get_memory(arm.context);
    llama_token *tokens = malloc(sizeof *tokens * ctx);
    random_tokens(tokens, ctx, strtoull(argv[8], NULL, 10), arm.vocab);
    printf("{\"load_seconds\": %.6f, \"context_seconds\": %.6f, \"tests\": [", arm.load_seconds, arm.context_seconds);
    for (char *test = strtok(argv[7], ","), *comma = ""; test; test = strtok(NULL, ","), comma = ", ") {
        int decode = !strncmp(test, "tg", 2);
        if (!decode && strncmp(test, "pp", 2)) fail("a TEST is neither pp<N> nor tg<N>", "write pp512,tg64");
        int count = number(test + 2, "the tokens of TEST", 1, ctx - depth);
        printf("%s{\"name\": \"%s\", \"samples\": [", comma, test);
        for (int round = 0; round <= repeat; round++) { // The first is not measured.
            llama_memory_clear(memory, true);
            feed_all(&arm, tokens, depth);
            double start = now();
            if (decode)
                for (int i = 0; i < count; i++) feed(&arm, tokens + depth + i, 1);
            else
                feed_all(&arm, tokens + depth, count);
            double seconds = now() - start;
            if (round) printf("%s%.4f", round > 1 ? ", " : "", count / seconds);
        }
        printf("]}");
    }
    printf("]");
    print_memory();
    printf("}\n");
    return 0;
}

static int argmax(const float *values, int count) {
    int best = 0;
    for (int i = 1; i < count; i++)
        if (values[i] > values[best]) best = i;
    return best;
}

static int first(int argc, char **argv) {
    if (argc != 6) return 2;
    double start = now();
    struct arm arm = load(argv[2], number(argv[3], "THREADS", 1, 512), number(argv[4], "CTX", 1, 1 << 20));
    const struct llama_vocab *vocab = llama_model_get_vocab(arm.model);
    if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE)
        fail("the model has no tokenizer", "put tokenizer.json into the checkpoint and convert it again");
    llama_token tokens[512];
    int count = llama_tokenize(vocab, argv[5], (int32_t)strlen(argv[5]), tokens, 512, true, false);
    if (count < 1) fail("the prompt gave no tokens, or more than 512", "use another prompt");
    feed(&arm, tokens, count);
    int token = argmax(llama_get_logits_ith(arm.context, -1), arm.vocab);
    char piece[256];
    int length = llama_token_to_piece(vocab, token, piece, sizeof piece, 0, true);
    fwrite(piece, 1, length > 0 ? length : 0, stdout);
    fflush(stdout);
    double seconds = now() - start;
    printf("\n{\"load_seconds\": %.6f, \"context_seconds\": %.6f, \"first_token_seconds\": %.6f, \"prompt_tokens\": %d, "
           "\"token\": %d", arm.load_seconds, arm.context_seconds, seconds, count, token);
    print_memory();
    printf("}\n");
    return 0;
}

static int logits(int argc, char **argv) {
    if (argc != 8) return 2;
    int step = number(argv[5], "STEP", 1, 512), ctx = number(argv[4], "CTX", 1, 1 << 20);
    struct arm arm = load(argv[2], number(argv[3], "THREADS", 1, 512), ctx);
    llama_token *tokens = malloc(sizeof *tokens * ctx);
    int count = 0;
    for (char *id = strtok(argv[7], ","); id; id = strtok(NULL, ",")) {
        if (count == ctx) fail("more ids than CTX", "raise CTX");
        tokens[count++] = number(id, "an id", 0, arm.vocab - 1);
    }
    FILE *out = fopen(argv[6], "wb");
    if (!out) fail("OUT cannot be written", "choose another file");
    struct llama_batch batch = llama_batch_init(step, 0, 1);
    for (int at = 0; at < count; at += step) {
        batch.n_tokens = count - at < step ? count - at : step;
        for (int i = 0; i < batch.n_tokens; i++) {
            batch.token[i] = tokens[at + i];
            batch.pos[i] = at + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        if (llama_decode(arm.context, batch)) fail("llama_decode failed", "raise CTX");
        for (int i = 0; i < batch.n_tokens; i++) {
            const float *row = llama_get_logits_ith(arm.context, i);
            if (fwrite(row, sizeof *row, arm.vocab, out) != (size_t)arm.vocab) fail("OUT is full", "make room");
        }
    }
    if (fclose(out)) fail("OUT is full", "make room");
    printf("{\"positions\": %d, \"vocab\": %d}\n", count, arm.vocab);
    return 0;
}

int main(int argc, char **argv) {
    int status = 2;
    if (argc > 1 && !strcmp(argv[1], "rates")) status = rates(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "first")) status = first(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "logits")) status = logits(argc, argv);
    if (status == 2) fprintf(stderr, "usage: see the head of llama_arm.c\n");
    return status;
}
