/* Stands between a process and the files of its store, and lets them go wrong while it is told to.
 *
 * HOLDFAST_SOAK_STORE    what the paths of the store begin with; all other files are left alone
 * HOLDFAST_SOAK_CONTROL  a file with a `struct control`, mapped by all processes of a soak
 * HOLDFAST_SOAK_SEED     from which this process draws which of its calls go wrong
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { WELL, FULL, BROKEN, STALLED };

struct control {
    uint32_t mode;
    uint32_t rate; /* of a million calls, that many go wrong */
    uint32_t stall_ms;
    uint32_t struck; /* how many have gone wrong */
};

static struct control *control;
static const char *store;
static size_t store_length;
static uint64_t state;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("HOLDFAST_SOAK_CONTROL");
    const char *seed = getenv("HOLDFAST_SOAK_SEED");
    store = getenv("HOLDFAST_SOAK_STORE");
    if (path == NULL || store == NULL) return;
    store_length = strlen(store);
    state = (seed ? strtoull(seed, NULL, 10) : 0) * 2 + 0x9E3779B97F4A7C15u;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) control = mapped;
}

static uint32_t draw(void) {
    uint64_t mixed = __atomic_add_fetch(&state, 0x9E3779B97F4A7C15u, __ATOMIC_RELAXED);
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((mixed >> 33) % 1000000);
}

static int is_of_store(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, store, store_length) == 0;
}

/* Return the error with which a call is to fail, 0 if it is to be made. */
static int fate(int file, int is_sync) {
    if (control == NULL) return 0;
    uint32_t mode = __atomic_load_n(&control->mode, __ATOMIC_RELAXED);
    if (mode == WELL || (mode == FULL && is_sync) || !is_of_store(file)) return 0;
    if (draw() >= control->rate) return 0;
    __atomic_add_fetch(&control->struck, 1, __ATOMIC_RELAXED);
    if (mode == STALLED) {
        struct timespec span = {control->stall_ms / 1000, control->stall_ms % 1000 * 1000000L};
        nanosleep(&span, NULL);
        return 0;
    }
    return mode == FULL ? ENOSPC : EIO;
}

#define INTERPOSE(is_sync, result, name, parameters, arguments)                 \
    result name parameters {                                                     \
        static result(*real) parameters;                                         \
        if (real == NULL) real = (result(*) parameters)dlsym(RTLD_NEXT, #name);  \
        int error = fate(file, is_sync);                                         \
        if (error) {                                                             \
            errno = error;                                                       \
            return -1;                                                           \
        }                                                                        \
        return real arguments;                                                   \
    }

INTERPOSE(0, ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
INTERPOSE(0, ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at))
INTERPOSE(0, ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, size, at))
INTERPOSE(0, int, ftruncate, (int file, off_t size), (file, size))
INTERPOSE(0, int, ftruncate64, (int file, off64_t size), (file, size))
INTERPOSE(1, int, fsync, (int file), (file))
INTERPOSE(1, int, fdatasync, (int file), (file))
