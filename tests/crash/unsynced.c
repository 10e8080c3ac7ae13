/*
 * A preloaded library that records which bytes of a directory were synced, so that a power failure can be simulated.
 *
 * Below the directory $MAMA_CRASH_STORE each fsync and fdatasync of a file copies the whole file to
 * $MAMA_CRASH_SHADOW/durable. That is what a disk is certain to hold after a power failure: writes that were not
 * followed by a sync of their file are not copied. A rename or hard link takes the synced copy along in
 * $MAMA_CRASH_SHADOW/pending, and becomes durable with the next fsync of its directory, as do new and removed names.
 * A new file is durable under its name after its own fsync, as on ext4, XFS and Btrfs.
 *
 * The real sync is left out: nothing in the shadow depends on it, and the simulated failure is the only one.
 * Only plain files of one level are handled per directory; paths are those below the store.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int (*two_paths)(const char *, const char *);
typedef int (*two_places)(int, const char *, int, const char *);

static int real_rename(const char *from, const char *to) {
    static two_paths real;
    if (!real)
        real = (two_paths)dlsym(RTLD_NEXT, "rename");
    return real(from, to);
}

static const char *store(void) { return getenv("MAMA_CRASH_STORE"); }
static const char *shadow(void) { return getenv("MAMA_CRASH_SHADOW"); }

/* The part of an absolute path below the store, NULL for another path; "" for the store itself. */
static const char *below(const char *path) {
    const char *root = store();
    if (!root || !shadow())
        return NULL;
    size_t length = strlen(root);
    if (strncmp(path, root, length) != 0)
        return NULL;
    if (path[length] == '\0')
        return path + length;
    return path[length] == '/' ? path + length + 1 : NULL;
}

static int path_of(int fd, char *path) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, PATH_MAX - 1);
    if (length < 0)
        return -1;
    path[length] = '\0';
    return 0;
}

static int lock_shadow(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/lock", shadow());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
            ;
    return fd;
}

static void make_parents(char *path) {
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
}

/* Copy what a descriptor has to a path, which appears when it is complete: a kill leaves the copy before. */
static int copy_to(int from, const char *to) {
    char temporary[PATH_MAX + 16], buffer[1 << 16];
    snprintf(temporary, sizeof temporary, "%s.copying", to);
    int out = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0)
        return -1;
    off_t at = 0;
    ssize_t got;
    while ((got = pread(from, buffer, sizeof buffer, at)) > 0) {
        if (write(out, buffer, got) != got) {
            got = -1;
            break;
        }
        at += got;
    }
    close(out);
    return got < 0 ? -1 : real_rename(temporary, to);
}

static int exists(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0;
}

static void move(const char *from_kind, const char *from, const char *to_kind, const char *to) {
    char source[2 * PATH_MAX], target[2 * PATH_MAX];
    snprintf(source, sizeof source, "%s/%s/%s", shadow(), from_kind, from);
    snprintf(target, sizeof target, "%s/%s/%s", shadow(), to_kind, to);
    make_parents(target);
    int fd = open(source, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        copy_to(fd, target);
        close(fd);
    } else {
        /* It was never synced: the name may appear without any content. */
        fd = open(target, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd >= 0)
            close(fd);
    }
}

static void drop(const char *kind, const char *name) {
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/%s", shadow(), kind, name);
    unlink(path);
}

/* Make the names of a directory durable. */
static void sync_directory(int fd, const char *name) {
    char listed[2 * PATH_MAX], path[3 * PATH_MAX], inner[2 * PATH_MAX];
    snprintf(listed, sizeof listed, "/proc/self/fd/%d", fd);
    DIR *names = opendir(listed);
    for (struct dirent *one; names && (one = readdir(names));) {
        struct stat status;
        if (fstatat(fd, one->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode))
            continue;
        snprintf(inner, sizeof inner, "%s%s%s", name, *name ? "/" : "", one->d_name);
        snprintf(path, sizeof path, "%s/pending/%s", shadow(), inner);
        if (exists(path)) {
            move("pending", inner, "durable", inner);
            unlink(path);
            continue;
        }
        snprintf(path, sizeof path, "%s/durable/%s", shadow(), inner);
        if (!exists(path))
            move("pending", inner, "durable", inner);
    }
    if (names)
        closedir(names);
    snprintf(listed, sizeof listed, "%s/durable/%s", shadow(), name);
    names = opendir(listed);
    for (struct dirent *one; names && (one = readdir(names));) {
        struct stat status;
        snprintf(path, sizeof path, "%s/%s", listed, one->d_name);
        if (one->d_name[0] != '.' || (one->d_name[1] && one->d_name[1] != '.'))
            if (lstat(path, &status) == 0 && S_ISREG(status.st_mode) && faccessat(fd, one->d_name, F_OK, 0) != 0)
                unlink(path);
    }
    if (names)
        closedir(names);
}

static int sync_shadow(int fd) {
    char path[PATH_MAX], target[2 * PATH_MAX];
    struct stat status;
    if (path_of(fd, path) != 0)
        return 0;
    const char *name = below(path);
    if (!name || fstat(fd, &status) != 0)
        return 0;
    /* A test of the test: a file of this name is never synced. */
    const char *ignored = getenv("MAMA_CRASH_UNSYNCED"), *last = strrchr(path, '/');
    if (ignored && last && strcmp(last + 1, ignored) == 0)
        return 1;
    int done = 1, locked = lock_shadow();
    if (S_ISDIR(status.st_mode)) {
        sync_directory(fd, name);
    } else if (S_ISREG(status.st_mode) && status.st_nlink > 0) {
        drop("pending", name);
        snprintf(target, sizeof target, "%s/durable/%s", shadow(), name);
        make_parents(target);
        /* It may be open for writing only. */
        int again = open(path, O_RDONLY | O_CLOEXEC);
        done = copy_to(again < 0 ? fd : again, target) == 0 ? 1 : -1;
        if (again >= 0)
            close(again);
    }
    if (locked >= 0)
        close(locked);
    return done;
}

static int synced(int fd, const char *real_name) {
    int saved = errno, done = sync_shadow(fd);
    errno = saved;
    if (done > 0)
        return 0;
    if (done < 0) {
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, real_name);
    return real(fd);
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }

/* The absolute path of a name below an open directory. */
static void absolute(int directory, const char *name, char *path) {
    char base[PATH_MAX];
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else if (directory == AT_FDCWD ? getcwd(base, sizeof base) != NULL : path_of(directory, base) == 0) {
        int length = snprintf(path, PATH_MAX, "%s/%s", base, name);
        if (length >= PATH_MAX)
            path[0] = '\0';
    } else {
        path[0] = '\0';
    }
}

static void note_name(int from_directory, const char *from, int to_directory, const char *to) {
    char source[PATH_MAX], target[PATH_MAX];
    int saved = errno;
    absolute(from_directory, from, source);
    absolute(to_directory, to, target);
    const char *before = below(source), *after = below(target);
    if (before && after) {
        char pending[2 * PATH_MAX];
        int locked = lock_shadow();
        snprintf(pending, sizeof pending, "%s/pending/%s", shadow(), before);
        move(exists(pending) ? "pending" : "durable", before, "pending", after);
        if (locked >= 0)
            close(locked);
    }
    errno = saved;
}

int rename(const char *from, const char *to) {
    int done = real_rename(from, to);
    if (done == 0)
        note_name(AT_FDCWD, from, AT_FDCWD, to);
    return done;
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    two_places real = (two_places)dlsym(RTLD_NEXT, "renameat");
    int done = real(from_directory, from, to_directory, to);
    if (done == 0)
        note_name(from_directory, from, to_directory, to);
    return done;
}

int link(const char *from, const char *to) {
    two_paths real = (two_paths)dlsym(RTLD_NEXT, "link");
    int done = real(from, to);
    if (done == 0)
        note_name(AT_FDCWD, from, AT_FDCWD, to);
    return done;
}

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    int (*real)(int, const char *, int, const char *, int) =
        (int (*)(int, const char *, int, const char *, int))dlsym(RTLD_NEXT, "linkat");
    int done = real(from_directory, from, to_directory, to, flags);
    if (done == 0)
        note_name(from_directory, from, to_directory, to);
    return done;
}
