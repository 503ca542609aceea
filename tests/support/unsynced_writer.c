/* Carries out the steps on stdin (tests/support/unsynced_writers.py), and kills itself. */
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void check(int is_right, const char *what)
{
    if (!is_right) {
        perror(what);
        exit(1);
    }
}

static void sync_path(const char *path)
{
    int file = open(path, O_RDONLY);
    check(file >= 0 && fsync(file) == 0 && close(file) == 0, path);
}

/* The file stays mapped until the end. */
static void map_and_write(const char *name, long size, int byte, int is_synced)
{
    struct stat found;
    int file = open(name, O_RDWR);
    check(file >= 0 && fstat(file, &found) == 0, name);
    if (found.st_size < size)
        check(ftruncate(file, size) == 0, name);
    char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(mapped != MAP_FAILED, name);
    memset(mapped, byte, size);
    if (is_synced)
        check(msync(mapped, size, MS_SYNC) == 0, name);
    close(file);
}

static void write_at(const char *name, long at, long size, int byte)
{
    char *data = malloc(size);
    int file = open(name, O_WRONLY);
    check(file >= 0 && data != NULL, name);
    memset(data, byte, size);
    check(pwrite(file, data, size, at) == size, name);
    free(data);
    close(file);
}

int main(void)
{
    char line[256], what[32], name[64], third[64];
    while (fgets(line, sizeof line, stdin)) {
        long size = 0;
        int byte = 0;
        sscanf(line, "%31s %63s %63s %ld %d", what, name, third, &size, &byte);
        if (!strcmp(what, "create")) {
            int file = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
            check(file >= 0, name);
            close(file);
        } else if (!strcmp(what, "write")) {
            write_at(name, atol(third), size, byte);
        } else if (!strcmp(what, "map") || !strcmp(what, "map-sync")) {
            map_and_write(name, size, byte, !strcmp(what, "map-sync"));
        } else if (!strcmp(what, "sync")) {
            sync_path(name);
        } else if (!strcmp(what, "sync-folder")) {
            sync_path(strchr(name, '/') ? dirname(name) : ".");
        } else if (!strcmp(what, "cut")) {
            check(truncate(name, atol(third)) == 0, name);
        } else if (!strcmp(what, "unlink")) {
            check(unlink(name) == 0, name);
        } else if (!strcmp(what, "rename")) {
            check(rename(name, third) == 0, name);
        } else {
            return 2;
        }
    }
    kill(getpid(), SIGKILL);
}
