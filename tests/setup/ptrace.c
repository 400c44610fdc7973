// Preloaded into an emulated wineserver: qemu's user emulation has no ptrace. What Wine does with it, reading and writing a stopped
// process's memory word by word, is done through /proc/PID/mem instead. Nothing is stopped.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t attached;

// One word of a process's memory, read into *word or written from it; -1 and errno if it cannot be.
static int move_word(pid_t pid, void *address, long *word, int write) {
  char path[40];
  snprintf(path, sizeof path, "/proc/%d/mem", pid);
  int file = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (file < 0) return -1;
  ssize_t moved = write ? pwrite64(file, word, sizeof *word, (off64_t)address) : pread64(file, word, sizeof *word, (off64_t)address);
  close(file);
  if (moved == sizeof *word) return 0;
  errno = EIO;
  return -1;
}

long ptrace(enum __ptrace_request request, ...) {
  va_list arguments;
  va_start(arguments, request);
  pid_t pid = va_arg(arguments, pid_t);
  void *address = va_arg(arguments, void *);
  long data = (long)va_arg(arguments, void *);
  va_end(arguments);
  switch (request) {
    case PTRACE_ATTACH:
      if (kill(pid, 0) && errno == ESRCH) return -1;
      attached = pid;
      return 0;
    case PTRACE_DETACH:
      attached = 0;
      return 0;
    case PTRACE_PEEKTEXT:
    case PTRACE_PEEKDATA:
      if (move_word(pid, address, &data, 0)) return -1;
      errno = 0; // -1 is also a word
      return data;
    case PTRACE_POKETEXT:
    case PTRACE_POKEDATA: return move_word(pid, address, &data, 1);
    default: errno = EPERM; return -1;
  }
}

// The stop that an attach would have been followed by. wait4, since that is what wineserver calls.
pid_t wait4(pid_t pid, int *status, int options, struct rusage *usage) {
  static pid_t (*real)(pid_t, int *, int, struct rusage *);
  if (attached && pid == attached) {
    if (status) *status = W_STOPCODE(SIGSTOP);
    return pid;
  }
  if (!real) real = (pid_t(*)(pid_t, int *, int, struct rusage *))dlsym(RTLD_NEXT, "wait4");
  return real(pid, status, options, usage);
}

pid_t waitpid(pid_t pid, int *status, int options) { return wait4(pid, status, options, NULL); }
