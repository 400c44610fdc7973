/* Asks Microsoft's dbghelp.dll and msdia140.dll, which tests/setup/microsoft.sh fetches, and writes what they answer.
 *
 *   judge FOLDER REQUEST ANSWER      FOLDER holds the two DLLs; REQUEST and ANSWER are files
 *
 * Both files are little-endian and without padding. tests/src/microsoft/mod.rs writes requests and reads answers; each command is
 * described at its function below. The answer begins with the file versions of the DLLs as loaded (u64 each), read from their resources
 * in memory: Wine has a dbghelp.dll of its own. */
#include <windows.h>
#include <dbghelp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Absent from mingw's dbghelp.h. */
DWORD WINAPI SymAddrIncludeInlineTrace(HANDLE process, DWORD64 address);
BOOL WINAPI SymQueryInlineTrace(HANDLE process, DWORD64 start, DWORD start_context, DWORD64 start_return, DWORD64 address, DWORD *context, DWORD *index);
BOOL WINAPI SymFromInlineContextW(HANDLE process, DWORD64 address, ULONG context, DWORD64 *displacement, SYMBOL_INFOW *symbol);
BOOL WINAPI SymGetLineFromInlineContextW(HANDLE process, DWORD64 address, ULONG context, DWORD64 base, DWORD *displacement, IMAGEHLP_LINEW64 *line);

#define DBGHELP(X) X(SymCleanup) X(SymSetOptions) X(SymInitialize) X(SymLoadModuleExW) X(SymFromAddrW) X(SymGetLineFromAddrW64) \
  X(SymAddrIncludeInlineTrace) X(SymQueryInlineTrace) X(SymFromInlineContextW) X(SymGetLineFromInlineContextW) X(StackWalk64) \
  X(SymGetModuleInfoW64)
#define DECLARE(n) static typeof(n) *p##n;
DBGHELP(DECLARE)
static HANDLE const PROCESS = (HANDLE)(ULONG_PTR)0x1234;

static void fail(const char *what) {
  fprintf(stderr, "judge: %s (error %lu)\n", what, GetLastError());
  ExitProcess(1);
}

/* ---- the two files */

static const uint8_t *begin, *at, *end;
static FILE *out;

static const uint8_t *take(uint64_t size) {
  const uint8_t *taken = at;
  if (size > (uint64_t)(end - at)) fail("the request ends early");
  at += size;
  return taken;
}
static uint32_t take32(void) { uint32_t v; memcpy(&v, take(4), 4); return v; }
static uint64_t take64(void) { uint64_t v; memcpy(&v, take(8), 8); return v; }
static void put(const void *bytes, size_t size) { if (fwrite(bytes, 1, size, out) != size) fail("the answer cannot be written"); }
static void put32(uint32_t v) { put(&v, 4); }
static void put64(uint64_t v) { put(&v, 8); }
/* Text: u32 bytes, UTF-8. */
static void put_text(const WCHAR *text) {
  static char utf8[16384];
  int size = WideCharToMultiByte(CP_UTF8, 0, text, -1, utf8, sizeof utf8, 0, 0);
  put32(size ? size - 1 : 0);
  put(utf8, size ? size - 1 : 0);
}
static WCHAR *take_text(void) {
  uint32_t size = take32();
  const char *utf8 = (const char *)take(size);
  WCHAR *text = calloc(size + 1, sizeof *text);
  MultiByteToWideChar(CP_UTF8, 0, utf8, size, text, size);
  return text;
}
/* The processor time of this thread in 100 ns, of which Wine knows hundredths of a second. */
static uint64_t cpu_time(void) {
  FILETIME made, ended, kernel, user;
  if (!GetThreadTimes(GetCurrentThread(), &made, &ended, &kernel, &user)) fail("GetThreadTimes");
  return ((uint64_t)kernel.dwHighDateTime << 32 | kernel.dwLowDateTime) + ((uint64_t)user.dwHighDateTime << 32 | user.dwLowDateTime);
}
/* What is repeated until it took some time: u64 nanoseconds of processor time and u64 frames or levels. */
typedef struct { uint64_t since, count; uint32_t milliseconds; } Clock;
static int continues(const Clock *c) { return c->milliseconds && cpu_time() - c->since < c->milliseconds * 10000ull; }
static void put_clock(const Clock *c) { put64((cpu_time() - c->since) * 100); put64(c->count); }

/* ---- memory and modules of the process that is walked */

typedef struct { uint64_t from, to; const uint8_t *bytes; } Range;
typedef struct { uint64_t from, to; uint32_t width, count; const uint8_t *functions; } Module;
static Range *ranges; static size_t range_count;
static Module *modules; static size_t module_count;
static Range stack;

/* DATA: u64 size, bytes, for MEMO. */
static void data(void) { take(take64()); }
/* MEMO: u64 address, u64 size, u64 place of its bytes in the request. In order of the address, without overlap. */
static void memory(void) {
  ranges = realloc(ranges, (range_count + 1) * sizeof *ranges);
  Range *r = &ranges[range_count++];
  r->from = take64();
  r->to = r->from + take64();
  uint64_t place = take64(), all = end - begin;
  if (place > all || r->to - r->from > all - place) fail("memory lies outside the request");
  r->bytes = begin + place;
}
/* MODU: u64 base, u64 size, u32 count, count RUNTIME_FUNCTIONs (12 bytes) in order. In order of the base. */
static void module(void) {
  modules = realloc(modules, (module_count + 1) * sizeof *modules);
  Module *m = &modules[module_count++];
  m->from = take64();
  m->to = m->from + take64();
  m->width = 12;
  m->count = take32();
  m->functions = take((uint64_t)m->count * m->width);
}
/* FREE: no memory and no modules. */
static void forget(void) { range_count = module_count = 0; }

static const Range *range_at(uint64_t address) {
  if (address - stack.from < stack.to - stack.from) return &stack;
  size_t low = 0, high = range_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].to <= address) low = middle + 1; else high = middle;
  }
  return low < range_count && ranges[low].from <= address ? &ranges[low] : 0;
}
static const Module *module_at(uint64_t address) {
  size_t low = 0, high = module_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (modules[middle].to <= address) low = middle + 1; else high = middle;
  }
  return low < module_count && modules[low].from <= address ? &modules[low] : 0;
}
static BOOL CALLBACK read_memory(HANDLE process, DWORD64 address, PVOID to, DWORD size, LPDWORD got) {
  (void)process;
  DWORD done = 0;
  while (done < size) {
    const Range *r = range_at(address + done);
    if (!r) break;
    uint64_t left = r->to - (address + done);
    DWORD part = left < size - done ? (DWORD)left : size - done;
    memcpy((uint8_t *)to + done, r->bytes + (address + done - r->from), part);
    done += part;
  }
  memset((uint8_t *)to + done, 0, size - done);
  *got = done;
  return done == size;
}
static PVOID CALLBACK function_at(HANDLE process, DWORD64 address) {
  (void)process;
  const Module *m = module_at(address);
  if (!m || !m->count) return 0;
  uint32_t rva = (uint32_t)(address - m->from), low = 0, high = m->count;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (((const uint32_t *)(m->functions + (size_t)middle * 12))[1] <= rva) low = middle + 1; else high = middle;
  }
  const uint32_t *found = (const uint32_t *)(m->functions + (size_t)low * 12);
  return low < m->count && found[0] <= rva ? (PVOID)found : 0;
}
static DWORD64 CALLBACK base_of(HANDLE process, DWORD64 address) {
  (void)process;
  const Module *m = module_at(address);
  return m ? m->from : 0;
}

/* ---- stacks of x64 */

static uint32_t walk(const uint64_t *registers, uint32_t most, int report) {
  CONTEXT c;
  STACKFRAME64 f;
  uint32_t frames = 0;
  memset(&c, 0, sizeof c);
  memset(&f, 0, sizeof f);
  c.ContextFlags = CONTEXT_CONTROL | CONTEXT_INTEGER;
  memcpy(&c.Rax, registers + 1, 16 * 8);
  c.Rip = registers[0];
  f.AddrPC.Mode = f.AddrStack.Mode = f.AddrFrame.Mode = AddrModeFlat;
  f.AddrPC.Offset = c.Rip;
  f.AddrStack.Offset = c.Rsp;
  f.AddrFrame.Offset = c.Rbp;
  while (frames < most && pStackWalk64(IMAGE_FILE_MACHINE_AMD64, PROCESS, (HANDLE)1, &f, &c, read_memory, function_at, base_of, 0)) {
    frames++;
    if (report) {
      uint64_t row[] = {f.AddrPC.Offset, c.Rsp, c.Rbx, c.Rbp, c.Rsi, c.Rdi, c.R12, c.R13, c.R14, c.R15};
      put32(1);
      put(row, sizeof row);
    }
  }
  if (report) put32(0);
  return frames;
}
static uint64_t walk_all(uint32_t most, uint32_t count, int report) {
  uint64_t frames = 0;
  for (uint32_t n = 0; n < count; n++) {
    uint64_t registers[17];
    memcpy(registers, take(sizeof registers), sizeof registers);
    stack.from = take64();
    stack.to = stack.from + take64();
    stack.bytes = take(stack.to - stack.from);
    frames += walk(registers, most, report);
  }
  return frames;
}
/* WALK: u32 most frames, u32 milliseconds, u32 count, count times: u64 rip and 16 registers in the processor's order, u64 address and u64
 * size of the stack, its bytes. Answers each stack's frames, the first that of the registers: u32 1, u64 pc, rsp, rbx, rbp, rsi, rdi, r12 to
 * r15; u32 0 ends a stack. Then the time of all frames, for at least those milliseconds and without an answer. */
static void walks(void) {
  uint32_t most = take32();
  Clock clock = {.milliseconds = take32()};
  uint32_t count = take32();
  const uint8_t *first = at;
  if (!pSymInitialize(PROCESS, 0, FALSE)) fail("SymInitialize");
  walk_all(most, count, 1);
  for (clock.since = cpu_time(); continues(&clock);) {
    at = first;
    clock.count += walk_all(most, count, 0);
  }
  put_clock(&clock);
  stack.from = stack.to = 0;
  pSymCleanup(PROCESS);
}

/* ---- names and lines by dbghelp */

typedef struct { SYMBOL_INFOW info; WCHAR more[4096]; } Symbol;

static void clear(Symbol *s) {
  memset(&s->info, 0, sizeof s->info);
  s->info.SizeOfStruct = sizeof s->info;
  s->info.MaxNameLen = 4096;
}
/* One level: u32 1, u64 start and u32 size of the symbol, its name, file, u32 line (0: none). */
static void put_level(const Symbol *s, BOOL has_name, const IMAGEHLP_LINEW64 *line, BOOL has_line) {
  put32(1);
  put64(has_name ? s->info.Address : 0);
  put32(has_name ? s->info.Size : 0);
  put_text(has_name ? s->info.Name : L"");
  put_text(has_line ? line->FileName : L"");
  put32(has_line ? line->LineNumber : 0);
}
static uint32_t lookup(uint64_t address, int report) {
  static Symbol s;
  IMAGEHLP_LINEW64 line = {.SizeOfStruct = sizeof line};
  DWORD64 displacement;
  DWORD column, context = 0, index = 0, inlined = pSymAddrIncludeInlineTrace(PROCESS, address);
  BOOL has_name, has_line;
  uint32_t levels = 1;
  if (inlined && pSymQueryInlineTrace(PROCESS, address, 0, address, address, &context, &index)) {
    for (DWORD n = 0; n < inlined; n++, context++) {
      clear(&s);
      has_name = pSymFromInlineContextW(PROCESS, address, context, &displacement, &s.info);
      has_line = pSymGetLineFromInlineContextW(PROCESS, address, context, 0, &column, &line);
      if (report) put_level(&s, has_name, &line, has_line);
      levels++;
    }
  }
  clear(&s);
  has_name = pSymFromAddrW(PROCESS, address, &displacement, &s.info);
  has_line = pSymGetLineFromAddrW64(PROCESS, address, &column, &line);
  if (report) {
    put_level(&s, has_name, &line, has_line);
    put32(0);
  }
  return levels;
}
static uint64_t lookup_all(uint64_t base, const uint8_t *rvas, uint32_t count, int report) {
  uint64_t levels = 0;
  for (uint32_t n = 0; n < count; n++) {
    uint32_t rva;
    memcpy(&rva, rvas + 4 * (size_t)n, 4);
    levels += lookup(base + rva, report);
  }
  return levels;
}
/* SYMS: path of the image or PDB, u64 base, u64 size, u32 options, u32 milliseconds, u32 count, u32 RVAs. Answers u32 kind of the symbols
 * (3: a PDB's), then each RVA's levels, innermost first, u32 0 after the last; then the time of all levels. */
static void symbols(void) {
  WCHAR *path = take_text();
  uint64_t base = take64(), size = take64();
  uint32_t options = take32();
  Clock clock = {.milliseconds = take32()};
  uint32_t count = take32();
  const uint8_t *rvas = take((uint64_t)count * 4);
  IMAGEHLP_MODULEW64 info = {.SizeOfStruct = sizeof info};
  pSymSetOptions(options);
  if (!pSymInitialize(PROCESS, 0, FALSE)) fail("SymInitialize");
  if (!pSymLoadModuleExW(PROCESS, 0, path, 0, base, (DWORD)size, 0, 0)) fail("SymLoadModuleEx");
  /* Symbols that are loaded later are loaded by the first question. */
  lookup(base + 0x1000, 0);
  pSymGetModuleInfoW64(PROCESS, base, &info);
  put32(info.SymType);
  lookup_all(base, rvas, count, 1);
  for (clock.since = cpu_time(); continues(&clock);) clock.count += lookup_all(base, rvas, count, 0);
  put_clock(&clock);
  pSymCleanup(PROCESS);
  free(path);
}

/* ---- msdia140, by the numbers of its methods: there is no header of it here */

#define CALL(object, method, ...) ((HRESULT(WINAPI *)(void *, ##__VA_ARGS__))(*(void ***)(object))[method])
static void release(void *object) { if (object) ((ULONG(WINAPI *)(void *))(*(void ***)object)[2])(object); }
static HRESULT(WINAPI *dia_class)(const GUID *, const GUID *, void **);

static void *dia_make(const GUID *class, const GUID *id) {
  static const GUID factory_id = {1, 0, 0, {0xc0, 0, 0, 0, 0, 0, 0, 0x46}};
  void *factory = 0, *made = 0;
  if (dia_class(class, &factory_id, &factory) || CALL(factory, 3, void *, const GUID *, void **)(factory, 0, id, &made))
    fail("msdia140 makes no object");
  release(factory);
  return made;
}
static void *dia_open(const WCHAR *pdb, uint64_t base) {
  static const GUID source_class = {0xe6756135, 0x1e65, 0x4d17, {0x85, 0x76, 0x61, 0x07, 0x61, 0x39, 0x8c, 0x3c}};
  static const GUID source_id = {0x79f1bb5f, 0xb66e, 0x48e5, {0xb6, 0xa9, 0x15, 0x45, 0xc3, 0x23, 0xca, 0x3d}};
  void *source = dia_make(&source_class, &source_id), *session = 0;
  if (CALL(source, 4, const WCHAR *)(source, pdb) || CALL(source, 8, void **)(source, &session)) fail("msdia140 opens no PDB");
  CALL(session, 4, uint64_t)(session, base);
  return session;
}
/* Next of an enumeration: an object or null. */
static void *dia_next(void *enumeration, int method) {
  void *object = 0;
  ULONG got = 0;
  if (CALL(enumeration, method, ULONG, void **, ULONG *)(enumeration, 1, &object, &got) != S_OK || !got) return 0;
  return object;
}
/* A level as put_level writes it, or nothing where `report` is 0. Takes the lines. */
static void dia_level(void *symbol, void *lines, int report) {
  void *line = lines ? dia_next(lines, 6) : 0, *file = 0;
  DWORD number = 0, rva = 0;
  BSTR name = 0, path = 0;
  CALL(symbol, 5, BSTR *)(symbol, &name);
  if (line) {
    CALL(line, 5, DWORD *)(line, &number);
    if (CALL(line, 4, void **)(line, &file) == S_OK) CALL(file, 4, BSTR *)(file, &path);
  }
  if (report) {
    CALL(symbol, 13, DWORD *)(symbol, &rva);
    put32(1);
    put64(rva);
    put32(0);
    put_text(name ? name : L"");
    put_text(path ? path : L"");
    put32(number);
  }
  SysFreeString(name);
  SysFreeString(path);
  release(file);
  release(line);
  release(lines);
}
static uint32_t dia_lookup(void *session, uint32_t rva, int report) {
  enum { FUNCTION = 5, PUBLIC = 10 };
  void *symbol = 0, *inlined = 0, *lines, *site;
  uint32_t levels = 0;
  if (CALL(session, 14, DWORD, DWORD, void **)(session, rva, FUNCTION, &symbol) != S_OK &&
      CALL(session, 14, DWORD, DWORD, void **)(session, rva, PUBLIC, &symbol) != S_OK)
    return 0;
  if (CALL(session, 31, void *, DWORD, void **)(session, symbol, rva, &inlined) == S_OK) {
    while ((site = dia_next(inlined, 6))) {
      lines = 0;
      CALL(session, 35, void *, DWORD, DWORD, void **)(session, site, rva, 1, &lines);
      dia_level(site, lines, report);
      levels++;
      release(site);
    }
    release(inlined);
  }
  lines = 0;
  CALL(session, 25, DWORD, DWORD, void **)(session, rva, 1, &lines);
  dia_level(symbol, lines, report);
  release(symbol);
  return levels + 1;
}
static uint64_t dia_lookup_all(void *session, const uint8_t *rvas, uint32_t count, int report) {
  uint64_t levels = 0;
  for (uint32_t n = 0; n < count; n++) {
    uint32_t rva;
    memcpy(&rva, rvas + 4 * (size_t)n, 4);
    levels += dia_lookup(session, rva, report);
    if (report) put32(0);
  }
  return levels;
}
/* DIAL: path of the PDB, u32 milliseconds, u32 count, u32 RVAs. Answers as SYMS, without the kind; starts are RVAs. */
static void dia_symbols(void) {
  WCHAR *path = take_text();
  Clock clock = {.milliseconds = take32()};
  uint32_t count = take32();
  const uint8_t *rvas = take((uint64_t)count * 4);
  void *session = dia_open(path, 0);
  dia_lookup_all(session, rvas, count, 1);
  for (clock.since = cpu_time(); continues(&clock);) clock.count += dia_lookup_all(session, rvas, count, 0);
  put_clock(&clock);
  release(session);
  free(path);
}

/* ---- FrameData of x86 by IDiaStackWalker, whose helper (IDiaStackWalkHelper) follows */

enum { EAX = 17, ECX, EDX, EBX, ESP, EBP, ESI, EDI, EIP = 33 }; /* CV_REG_… */
static uint64_t dia_registers[64];
static void *dia_session, *dia_frames;
static int dia_used; /* whether FrameData of the PDB was found */

static HRESULT WINAPI helper_query(void *self, const GUID *id, void **to) { (void)id; *to = self; return S_OK; }
static ULONG WINAPI helper_count(void *self) { (void)self; return 1; }
static HRESULT WINAPI helper_get(void *self, DWORD n, uint64_t *value) {
  (void)self;
  *value = 0;
  if (n >= 64 || !((n >= EAX && n <= EDI) || n == EIP || n == EIP + 1)) return E_FAIL;
  *value = dia_registers[n];
  return S_OK;
}
static HRESULT WINAPI helper_put(void *self, DWORD n, uint64_t value) { (void)self; if (n < 64) dia_registers[n] = (uint32_t)value; return S_OK; }
static HRESULT WINAPI helper_read(void *self, int kind, uint64_t address, DWORD size, DWORD *got, BYTE *to) {
  (void)self, (void)kind;
  return read_memory(0, address, to, size, got) ? S_OK : E_FAIL;
}
static HRESULT WINAPI helper_search(void *self, void *frame, uint64_t *to) { (void)self, (void)frame, (void)to; return E_NOTIMPL; }
static HRESULT WINAPI helper_search_from(void *self, void *frame, uint64_t from, uint64_t *to) { (void)self, (void)frame, (void)from, (void)to; return E_NOTIMPL; }
static HRESULT WINAPI helper_frame(void *self, uint64_t address, void **to) {
  (void)self;
  *to = 0;
  HRESULT result = CALL(dia_frames, 10, DWORD, void **)(dia_frames, (DWORD)(address - modules[0].from), to);
  dia_used |= result == S_OK;
  return result;
}
static HRESULT WINAPI helper_symbol(void *self, uint64_t address, void **to) {
  (void)self;
  *to = 0;
  return CALL(dia_session, 14, DWORD, DWORD, void **)(dia_session, (DWORD)(address - modules[0].from), 5, to);
}
static HRESULT WINAPI helper_pdata(void *self, uint64_t address, DWORD size, DWORD *got, BYTE *to) { (void)self, (void)address, (void)size, (void)to; *got = 0; return E_NOTIMPL; }
static HRESULT WINAPI helper_image(void *self, uint64_t address, uint64_t *to) { (void)self; *to = base_of(0, address); return *to ? S_OK : E_FAIL; }
static HRESULT WINAPI helper_section(void *self, uint64_t address, DWORD *section, DWORD *offset) {
  (void)self, (void)address, (void)section, (void)offset;
  return E_NOTIMPL;
}
static HRESULT WINAPI helper_pieces(void *self, uint64_t address, DWORD size, DWORD *count) { (void)self, (void)address, (void)size; *count = 1; return S_OK; }
static HRESULT WINAPI helper_piece(void *self, uint64_t address, DWORD size, DWORD count, uint64_t *from, DWORD *len) { (void)self, (void)count; *from = address; *len = size; return S_OK; }
static void *helper_methods[] = {helper_query, helper_count, helper_count, helper_get, helper_put, helper_read, helper_search, helper_search_from,
                                 helper_frame, helper_symbol, helper_pdata, helper_image, helper_section, helper_pieces, helper_piece};
static void *helper = helper_methods;

static void *dia_frame_table(void *session) {
  static const GUID frames_id = {0x9fc77a4b, 0x3c1c, 0x44ed, {0xa7, 0x98, 0x6c, 0x1d, 0xee, 0xa5, 0x3e, 0x1f}};
  void *tables = 0, *table, *found = 0;
  if (CALL(session, 6, void **)(session, &tables)) return 0;
  while (!found && (table = dia_next(tables, 6))) {
    CALL(table, 0, const GUID *, void **)(table, &frames_id, &found);
    release(table);
  }
  release(tables);
  return found;
}
/* FRAM: path of the PDB, u32 count, count times: u32 eip, eax ecx edx ebx esp ebp esi edi, u64 size of the stack, its bytes from esp up. The
 * one module gives the base. Answers each state's caller: u32 1 by the PDB's FrameData, 2 without it, 0 none; u32 return address, esp, ebx,
 * ebp, esi, edi, which are 0 without a caller. */
static void dia_states(void) {
  static const GUID walker_class = {0xce4a85db, 0x5768, 0x475b, {0xa4, 0xe1, 0xc0, 0xbc, 0xa2, 0x11, 0x2a, 0x6b}};
  static const GUID walker_id = {0x5485216b, 0xa54c, 0x469f, {0x96, 0x70, 0x52, 0xb2, 0x4d, 0x52, 0x29, 0xbb}};
  WCHAR *path = take_text();
  void *walker = dia_make(&walker_class, &walker_id);
  if (!module_count) fail("no module");
  dia_session = dia_open(path, modules[0].from);
  if (!(dia_frames = dia_frame_table(dia_session))) fail("the PDB has no table of FrameData");
  for (uint32_t count = take32(); count; count--) {
    uint32_t answer[7] = {0}, registers[9];
    void *frames = 0, *frame = 0;
    uint64_t caller = 0;
    memcpy(registers, take(sizeof registers), sizeof registers);
    memset(dia_registers, 0, sizeof dia_registers);
    dia_registers[EIP] = registers[0];
    for (int n = 0; n < 8; n++) dia_registers[EAX + n] = registers[n + 1];
    stack.from = registers[5];
    stack.to = stack.from + take64();
    stack.bytes = take(stack.to - stack.from);
    dia_used = 0;
    if (CALL(walker, 4, int, void *, void **)(walker, 3, &helper, &frames) == S_OK && frames && (frame = dia_next(frames, 3)) &&
        CALL(frame, 6, uint64_t *)(frame, &caller) == S_OK) {
      uint32_t found[] = {dia_used ? 1 : 2, (uint32_t)caller, dia_registers[ESP], dia_registers[EBX], dia_registers[EBP], dia_registers[ESI], dia_registers[EDI]};
      memcpy(answer, found, sizeof answer);
    }
    put(answer, sizeof answer);
    release(frame);
    release(frames);
  }
  stack.from = stack.to = 0;
  release(dia_frames);
  release(dia_session);
  release(walker);
  free(path);
}

/* ---- */

static HMODULE load(const WCHAR *folder, const WCHAR *name) {
  WCHAR path[MAX_PATH * 2];
  _snwprintf(path, sizeof path / sizeof *path, L"%ls\\%ls", folder, name);
  HMODULE module = LoadLibraryExW(path, 0, LOAD_WITH_ALTERED_SEARCH_PATH);
  if (!module) fail("a DLL cannot be loaded");
  HRSRC found = FindResourceW(module, MAKEINTRESOURCEW(1), (LPCWSTR)RT_VERSION);
  const uint8_t *version = found ? LockResource(LoadResource(module, found)) : 0;
  for (DWORD n = 0, size = version ? SizeofResource(module, found) : 0; n + sizeof(VS_FIXEDFILEINFO) <= size; n += 4) {
    const VS_FIXEDFILEINFO *info = (const void *)(version + n);
    if (info->dwSignature == 0xfeef04bd) {
      put32(info->dwFileVersionLS);
      put32(info->dwFileVersionMS);
      return module;
    }
  }
  fail("a DLL has no version");
  return 0;
}

int wmain(int argc, WCHAR **argv) {
  if (argc != 4) {
    fputs("usage: judge FOLDER REQUEST ANSWER\n", stderr);
    return 2;
  }
  HANDLE file = CreateFileW(argv[2], GENERIC_READ, FILE_SHARE_READ, 0, OPEN_EXISTING, 0, 0);
  LARGE_INTEGER size;
  if (file == INVALID_HANDLE_VALUE || !GetFileSizeEx(file, &size)) fail("the request cannot be opened");
  HANDLE mapping = CreateFileMappingW(file, 0, PAGE_READONLY, 0, 0, 0);
  at = begin = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0) : 0;
  if (!at) fail("the request cannot be mapped");
  end = at + size.QuadPart;
  if (!(out = _wfopen(argv[3], L"wb"))) fail("the answer cannot be made");
  HMODULE dbghelp = load(argv[1], L"dbghelp.dll"), dia = load(argv[1], L"msdia140.dll");
#define FIND(n) if (!(p##n = (void *)GetProcAddress(dbghelp, #n))) fail(#n);
  DBGHELP(FIND)
  if (!(dia_class = (void *)GetProcAddress(dia, "DllGetClassObject"))) fail("DllGetClassObject");
  static const struct { char name[5]; void (*run)(void); } commands[] = {
      {"DATA", data}, {"MEMO", memory}, {"MODU", module}, {"FREE", forget}, {"WALK", walks}, {"SYMS", symbols}, {"DIAL", dia_symbols}, {"FRAM", dia_states}};
  while (at < end) {
    const uint8_t *name = take(4);
    size_t n = 0, known = sizeof commands / sizeof *commands;
    while (n < known && memcmp(name, commands[n].name, 4)) n++;
    if (n == known) fail("an unknown command");
    commands[n].run();
  }
  if (fclose(out)) fail("the answer cannot be written");
  /* Both DLLs are done with: what they do at the end is of no interest. */
  ExitProcess(0);
}
