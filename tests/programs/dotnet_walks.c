/* The walks of a 32-bit runtime's own data access library, which stk's are compared with.
 *
 *   dotnet_walks PID LIBRARY SECONDS OUT
 *
 * Stops each thread of the process again and again, writes its registers and stack, and what the library's IXCLRDataStackWalk finds:
 *
 *   S eip esp ebp ebx esi edi base stack      a thread whose innermost frame is managed: registers, the stack's upper end, its bytes from esp up
 *   F kind eip esp ebp                        a frame, innermost first; kind 2 is a method
 *   E                                         the library gave no next frame, and not because there is none
 *
 * All numbers are hexadecimal. The last line on standard output counts the walks. The interfaces are the runtime's (clrdata.idl, xclrdata.idl):
 * only slots that are used are named. */
#define _WIN32_WINNT 0x0A00
#define PSAPI_VERSION 2
#include <windows.h>
#include <psapi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tlhelp32.h>

#define SLOT(object, n) (((void ***)(object))[0][n])
#define CALL __attribute__((stdcall))

enum { RELEASE = 2, FLUSH = 3, TASK_BY_ID = 7, CREATE_WALK = 11, WALK_CONTEXT = 3, WALK_NEXT = 5, WALK_FRAME_TYPE = 7 };
enum { METHOD = 2, ALL_KINDS = 0xf, MOST_FRAMES = 512, MOST_STACK = 256 << 10 };

typedef LONG CALL query_thread(HANDLE, int, void *, ULONG, ULONG *);
/* THREAD_BASIC_INFORMATION of a 32-bit process. */
struct basic { LONG status; uint8_t *teb; uint32_t rest[5]; };

static HANDLE process;
static query_thread *query_information;
static CONTEXT stopped;
static DWORD stopped_thread;

/* ICLRDataTarget: what the library asks about the process. */
static HRESULT CALL query(void *self, const GUID *id, void **out) {
  static const GUID unknown = {0, 0, 0, {0xc0, 0, 0, 0, 0, 0, 0, 0x46}};
  static const GUID target = {0x3e11ccee, 0xd08b, 0x43e5, {0xaf, 0x01, 0x32, 0x71, 0x7a, 0x64, 0xda, 0x03}};
  *out = !memcmp(id, &unknown, sizeof unknown) || !memcmp(id, &target, sizeof target) ? self : NULL;
  return *out ? S_OK : E_NOINTERFACE;
}

static ULONG CALL count(void *self) {
  (void)self;
  return 1;
}

static HRESULT CALL machine(void *self, uint32_t *out) {
  (void)self;
  *out = IMAGE_FILE_MACHINE_I386;
  return S_OK;
}

static HRESULT CALL pointer_size(void *self, uint32_t *out) {
  (void)self;
  *out = 4;
  return S_OK;
}

static HRESULT CALL image_base(void *self, const WCHAR *name, uint64_t *out) {
  HMODULE modules[512];
  DWORD size;
  WCHAR found[MAX_PATH];
  (void)self;
  if (!EnumProcessModules(process, modules, sizeof modules, &size)) return E_FAIL;
  for (DWORD n = 0; n < size / sizeof *modules && n < 512; n++)
    if (GetModuleBaseNameW(process, modules[n], found, MAX_PATH) && !lstrcmpiW(found, name)) {
      *out = (uintptr_t)modules[n];
      return S_OK;
    }
  return E_FAIL;
}

/* A page of the process, as it was in this walk: the library reads word by word, thousands of times. */
enum { PAGE = 4096, PAGES = 4096 };
static struct { uint32_t address, walk; uint8_t bytes[PAGE]; } pages[PAGES];
static uint32_t this_walk;

static HRESULT CALL read_memory(void *self, uint64_t address, void *out, uint32_t size, uint32_t *done) {
  uint32_t at = address;
  (void)self;
  *done = 0;
  while (*done < size) {
    uint32_t start = at & ~(PAGE - 1), n = start / PAGE % PAGES, part = PAGE - (at - start);
    SIZE_T read = 0;
    if (pages[n].address != start || pages[n].walk != this_walk) {
      pages[n].walk = 0;
      if (!ReadProcessMemory(process, (void *)start, pages[n].bytes, PAGE, &read) || read != PAGE) break;
      pages[n].address = start;
      pages[n].walk = this_walk;
    }
    if (part > size - *done) part = size - *done;
    memcpy((uint8_t *)out + *done, pages[n].bytes + (at - start), part);
    *done += part;
    at += part;
  }
  return *done ? S_OK : E_FAIL;
}

static HRESULT CALL write_memory(void *self, uint64_t address, void *in, uint32_t size, uint32_t *done) {
  (void)self, (void)address, (void)in, (void)size, (void)done;
  return E_NOTIMPL;
}

static HRESULT CALL get_tls(void *self, uint32_t thread, uint32_t index, uint64_t *value) {
  (void)self, (void)thread, (void)index, (void)value;
  return E_NOTIMPL;
}

static HRESULT CALL set_tls(void *self, uint32_t thread, uint32_t index, uint64_t value) {
  (void)self, (void)thread, (void)index, (void)value;
  return E_NOTIMPL;
}

static HRESULT CALL current_thread(void *self, uint32_t *thread) {
  (void)self, (void)thread;
  return E_NOTIMPL;
}

static HRESULT CALL get_context(void *self, uint32_t thread, uint32_t flags, uint32_t size, void *out) {
  (void)self, (void)flags;
  if (thread != stopped_thread) return E_FAIL;
  memcpy(out, &stopped, size < sizeof stopped ? size : sizeof stopped);
  return S_OK;
}

static HRESULT CALL set_context(void *self, uint32_t thread, uint32_t size, void *in) {
  (void)self, (void)thread, (void)size, (void)in;
  return E_NOTIMPL;
}

static HRESULT CALL request(void *self, uint32_t code, uint32_t in_size, void *in, uint32_t out_size, void *out) {
  (void)self, (void)code, (void)in_size, (void)in, (void)out_size, (void)out;
  return E_NOTIMPL;
}

static void *target_table[] = {query,        count,   count,   machine,        pointer_size, image_base,  read_memory,
                               write_memory, get_tls, set_tls, current_thread, get_context,  set_context, request};
static struct { void **table; } target = {target_table};

struct frame { uint32_t kind, eip, esp, ebp; };

/* The stopped thread's frames. `whole`: whether the library reached the end. */
static int frames_of(void *library, struct frame *frames, int *whole) {
  void *task = NULL, *walk = NULL;
  int found = 0;
  *whole = 0;
  this_walk++;
  ((HRESULT CALL (*)(void *))SLOT(library, FLUSH))(library);
  if (((HRESULT CALL (*)(void *, uint32_t, void **))SLOT(library, TASK_BY_ID))(library, stopped_thread, &task) || !task) return 0;
  if (!((HRESULT CALL (*)(void *, uint32_t, void **))SLOT(task, CREATE_WALK))(task, ALL_KINDS, &walk) && walk) {
    for (HRESULT next = S_OK; next == S_OK && found < MOST_FRAMES; found++) {
      uint32_t kind = 0, detailed = 0, size = 0;
      CONTEXT context = {.ContextFlags = CONTEXT_FULL};
      if (((HRESULT CALL (*)(void *, uint32_t *, uint32_t *))SLOT(walk, WALK_FRAME_TYPE))(walk, &kind, &detailed)) break;
      if (((HRESULT CALL (*)(void *, uint32_t, uint32_t, uint32_t *, void *))SLOT(walk, WALK_CONTEXT))(walk, CONTEXT_FULL, sizeof context, &size,
                                                                                                     &context))
        break;
      frames[found] = (struct frame){kind, context.Eip, context.Esp, context.Ebp};
      next = ((HRESULT CALL (*)(void *))SLOT(walk, WALK_NEXT))(walk);
      *whole = next == S_FALSE;
    }
    ((ULONG CALL (*)(void *))SLOT(walk, RELEASE))(walk);
  }
  ((ULONG CALL (*)(void *))SLOT(task, RELEASE))(task);
  return found;
}

/* Stops a thread and writes its walk. Returns whether it had one. */
static int look(void *library, DWORD id, FILE *out) {
  static struct frame frames[MOST_FRAMES + 1];
  static uint8_t stack[MOST_STACK];
  struct basic basic;
  uint32_t bounds[3];
  SIZE_T read = 0;
  int found = 0, whole = 0;
  HANDLE thread = OpenThread(THREAD_ALL_ACCESS, FALSE, id);
  if (!thread) return 0;
  if (query_information(thread, 0, &basic, sizeof basic, NULL) || SuspendThread(thread) == (DWORD)-1) {
    CloseHandle(thread);
    return 0;
  }
  stopped = (CONTEXT){.ContextFlags = CONTEXT_FULL};
  stopped_thread = id;
  if (GetThreadContext(thread, &stopped) && ReadProcessMemory(process, basic.teb, bounds, sizeof bounds, &read) &&
      stopped.Esp >= bounds[2] && stopped.Esp < bounds[1] && bounds[1] - stopped.Esp <= MOST_STACK &&
      ReadProcessMemory(process, (void *)stopped.Esp, stack, bounds[1] - stopped.Esp, &read))
    found = frames_of(library, frames, &whole);
  ResumeThread(thread);
  CloseHandle(thread);
  /* A walk of native code begins at the runtime's first Frame. */
  if (!found || frames[0].kind != METHOD || frames[0].eip != stopped.Eip) return 0;
  fprintf(out, "S %lx %lx %lx %lx %lx %lx %x ", stopped.Eip, stopped.Esp, stopped.Ebp, stopped.Ebx, stopped.Esi, stopped.Edi, bounds[1]);
  for (SIZE_T n = 0; n < read; n++) fprintf(out, "%02x", stack[n]);
  fputc('\n', out);
  for (int n = 0; n < found; n++) fprintf(out, "F %x %x %x %x\n", frames[n].kind, frames[n].eip, frames[n].esp, frames[n].ebp);
  if (!whole) fputs("E\n", out);
  return 1;
}

int main(int argc, char **argv) {
  static const GUID process_id = {0x5c552ab6, 0xfc09, 0x4cb3, {0x8e, 0x36, 0x22, 0xfa, 0x03, 0xc7, 0x98, 0xb7}};
  typedef HRESULT CALL create(const GUID *, void *, void **);
  if (argc != 5) return 2;
  DWORD pid = strtoul(argv[1], NULL, 10), until = GetTickCount() + 1000 * strtoul(argv[3], NULL, 10);
  FILE *out = fopen(argv[4], "wb");
  HMODULE module = LoadLibraryA(argv[2]);
  create *make = module ? (create *)(void *)GetProcAddress(module, "CLRDataCreateInstance") : NULL;
  void *library = NULL;
  query_information = (query_thread *)(void *)GetProcAddress(GetModuleHandleA("ntdll"), "NtQueryInformationThread");
  process = OpenProcess(PROCESS_ALL_ACCESS, FALSE, pid);
  if (!out || !process || !make || make(&process_id, &target, &library) || !library) {
    printf("dotnet_walks: no library (error %lu)\n", GetLastError());
    return 1;
  }
  int walks = 0;
  while ((LONG)(until - GetTickCount()) > 0) {
    HANDLE threads = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    THREADENTRY32 entry = {.dwSize = sizeof entry};
    for (BOOL more = Thread32First(threads, &entry); more; more = Thread32Next(threads, &entry))
      if (entry.th32OwnerProcessID == pid) walks += look(library, entry.th32ThreadID, out);
    CloseHandle(threads);
    Sleep(3);
  }
  printf("walks %d\n", walks);
  return fclose(out) ? 1 : 0;
}
