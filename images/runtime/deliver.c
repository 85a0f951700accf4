/* /deliver FOLDER: copies the image's runtime into FOLDER, for the job that starts next.

   An init container of somebody's training job. Whatever happens it ends with code 0, because the
   job must not fail for us; a runtime that is not there is a path that Python ignores. So a half
   copy must never look like a whole one: files go to FOLDER/.partial, and what Python is pointed to
   appears by one rename at the end. Why nothing was delivered is said in one line on standard
   error, in FOLDER/not-delivered, and as the container's termination message.

   It needs 16 MiB, and page cache counts: what was written is sent to the disk and let go, a
   mebibyte at a time. No allocation, no libraries, no privileges, nothing written but FOLDER. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef SOURCE
#define SOURCE "/runtime"
#endif
#ifndef MESSAGE
#define MESSAGE "/dev/termination-log"
#endif
#define WHOLE "inject"
#define PARTIAL ".partial"
#define WHY "not-delivered"

enum { CHUNK = 64 << 10, AT_ONCE = 1 << 20, DEEPEST = 16 };
enum { FOLDER_FLAGS = O_RDONLY | O_DIRECTORY | O_CLOEXEC };

static char reason[1024];

/* Keeps the first reason. */
static int failed(const char *what, const char *name) {
  int code = errno;
  if (reason[0] == 0) {
    snprintf(reason, sizeof reason, "deliver: %s %s: %s\n", what, name, strerror(code));
  }
  return -1;
}

static int let_go(int file, off_t from, off_t size) {
  if (sync_file_range(file, from, size,
                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                          SYNC_FILE_RANGE_WAIT_AFTER) != 0 &&
      errno != EINVAL && errno != ENOSYS && errno != ESPIPE) {
    return -1;
  }
  posix_fadvise(file, from, size, POSIX_FADV_DONTNEED);
  return 0;
}

static int write_all(int to, const char *data, ssize_t size) {
  while (size > 0) {
    ssize_t written = write(to, data, (size_t)size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return -1;
    data += written;
    size -= written;
  }
  return 0;
}

static int copy_bytes(int from, int to, const char *name) {
  static char data[CHUNK];
  off_t done = 0, kept = 0;
  for (;;) {
    ssize_t got = read(from, data, sizeof data);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("cannot read", name);
    if (got > 0 && write_all(to, data, got) != 0) return failed("cannot write", name);
    done += got;
    if (done - kept >= AT_ONCE || (got == 0 && done > kept)) {
      if (let_go(to, kept, done - kept) != 0) return failed("cannot write", name);
      posix_fadvise(from, kept, done - kept, POSIX_FADV_DONTNEED);
      kept = done;
    }
    if (got == 0) return 0;
  }
}

static int copy_file(int from_folder, int to_folder, const char *name, mode_t mode) {
  int from = openat(from_folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (from < 0) return failed("cannot read", name);
  int to = openat(to_folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                  mode & 0111 ? 0755 : 0644);
  int outcome = to < 0 ? failed("cannot create", name) : copy_bytes(from, to, name);
  if (to >= 0 && close(to) != 0 && outcome == 0) outcome = failed("cannot write", name);
  close(from);
  return outcome;
}

static int copy_folder(int from, int to, int depth);

static int copy_subfolder(int from_folder, int to_folder, const char *name, int depth) {
  int from = openat(from_folder, name, FOLDER_FLAGS | O_NOFOLLOW);
  if (from < 0) return failed("cannot read", name);
  int to = -1;
  if (mkdirat(to_folder, name, 0755) == 0) to = openat(to_folder, name, FOLDER_FLAGS | O_NOFOLLOW);
  int outcome = to < 0 ? failed("cannot create", name) : copy_folder(from, to, depth + 1);
  if (to >= 0) close(to);
  close(from);
  return outcome;
}

static int is_special(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

static int copy_entry(int from, int to, const char *name, int depth) {
  struct stat found;
  if (fstatat(from, name, &found, AT_SYMLINK_NOFOLLOW) != 0) return failed("cannot read", name);
  if (S_ISREG(found.st_mode)) return copy_file(from, to, name, found.st_mode);
  errno = ELOOP;
  if (!S_ISDIR(found.st_mode) || depth >= DEEPEST) return failed("does not copy", name);
  return copy_subfolder(from, to, name, depth);
}

static int copy_folder(int from, int to, int depth) {
  int listed = openat(from, ".", FOLDER_FLAGS);
  DIR *folder = listed < 0 ? NULL : fdopendir(listed);
  if (folder == NULL) return failed("cannot read", SOURCE);
  int outcome = 0;
  struct dirent *entry;
  while (outcome == 0 && (errno = 0, entry = readdir(folder)) != NULL) {
    if (!is_special(entry->d_name)) outcome = copy_entry(from, to, entry->d_name, depth);
  }
  if (outcome == 0 && errno != 0) outcome = failed("cannot read", SOURCE);
  closedir(folder);
  return outcome;
}

/* Removes `name` and all below, as far as it can. */
static void remove_all(int parent, const char *name, int depth) {
  if (unlinkat(parent, name, 0) == 0 || errno == ENOENT || depth > DEEPEST + 1) return;
  int listed = openat(parent, name, FOLDER_FLAGS | O_NOFOLLOW);
  DIR *folder = listed < 0 ? NULL : fdopendir(listed);
  if (folder == NULL) return;
  struct dirent *entry;
  while ((entry = readdir(folder)) != NULL) {
    if (!is_special(entry->d_name)) remove_all(listed, entry->d_name, depth + 1);
  }
  closedir(folder);
  unlinkat(parent, name, AT_REMOVEDIR);
}

/* The source, under a name that nobody looks for. */
static int copy_to_partial(int folder) {
  int from = open(SOURCE "/" WHOLE, FOLDER_FLAGS);
  if (from < 0) return failed("cannot read", SOURCE "/" WHOLE);
  int to = -1;
  if (mkdirat(folder, PARTIAL, 0755) == 0) to = openat(folder, PARTIAL, FOLDER_FLAGS | O_NOFOLLOW);
  int outcome = to < 0 ? failed("cannot create", PARTIAL) : copy_folder(from, to, 0);
  if (to >= 0) close(to);
  close(from);
  return outcome;
}

static int deliver(int folder) {
  if (faccessat(folder, WHOLE, F_OK, 0) == 0) return 0; /* this container was started again */
  remove_all(folder, PARTIAL, 0);                       /* and was killed before */
  if (copy_to_partial(folder) == 0) {
    if (renameat(folder, PARTIAL, folder, WHOLE) == 0) {
      unlinkat(folder, WHY, 0);
      return 0;
    }
    failed("cannot create", WHOLE);
  }
  remove_all(folder, PARTIAL, 0); /* its room is the job's */
  return -1;
}

static void say_why(int folder) {
  ssize_t size = (ssize_t)strlen(reason);
  int message = open(MESSAGE, O_WRONLY | O_TRUNC | O_CLOEXEC);
  int kept = folder < 0 ? -1 : openat(folder, WHY, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  int told[] = {STDERR_FILENO, message, kept};
  for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
    if (told[i] >= 0) (void)write_all(told[i], reason, size);
  }
}

int main(int count, char **arguments) {
  umask(022);
  signal(SIGPIPE, SIG_IGN); /* nobody reads the log */
  signal(SIGXFSZ, SIG_IGN); /* a limit on files is a disk that is full */
  errno = EINVAL;
  if (count != 2) {
    failed("is called as", "/deliver FOLDER");
    say_why(-1);
    return 0;
  }
  int folder = open(arguments[1], FOLDER_FLAGS);
  if (folder < 0 ? failed("cannot open", arguments[1]) : deliver(folder)) say_why(folder);
  return 0;
}
