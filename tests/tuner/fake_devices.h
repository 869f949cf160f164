/* Devices that a file describes, read again at each call. A line is DEVICE.KEY=VALUE; `!N` as the value is the library's
   error N; an absent key is NOT_SUPPORTED, an absent file NOT_LOADED, after which the library has to be opened again.
   `@N` grows by N a millisecond. Whoever includes this defines FILE_VARIABLE, NOT_SUPPORTED and NOT_LOADED. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int x5tune_simulated = 1;
static int is_open;

static int text(int device, const char *key, char *out, size_t size) {
    const char *path = getenv(FILE_VARIABLE);
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], wanted[64];
    int status = NOT_SUPPORTED;
    if (!file) {
        is_open = 0;
        return NOT_LOADED;
    }
    snprintf(wanted, sizeof wanted, "%d.%s=", device, key);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, wanted, strlen(wanted))) continue;
        snprintf(out, size, "%s", line + strlen(wanted));
        status = *out == '!' ? atoi(out + 1) : 0;
    }
    fclose(file);
    return status;
}

static unsigned long long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

static int number(void *handle, const char *key, unsigned long long *out) {
    char found[128];
    int status = text((int)(size_t)handle - 1, key, found, sizeof found);
    if (!status) *out = *found == '@' ? strtoull(found + 1, NULL, 10) * milliseconds() : strtoull(found, NULL, 10);
    return status;
}

static int number32(void *handle, const char *key, unsigned *out) {
    unsigned long long found;
    int status = number(handle, key, &found);
    if (!status) *out = (unsigned)found;
    return status;
}

static int copied(void *handle, const char *key, char *out, unsigned size) {
    return text((int)(size_t)handle - 1, key, out, size);
}
