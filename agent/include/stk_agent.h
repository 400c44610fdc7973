/*
 * agent.dll: records the stacks of the process that it is loaded into. The structs are the same as
 * in stk-schema's `control`.
 *
 * Load the DLL, call stk_agent_start with a config, later stk_agent_stop. The same process may then
 * start another recording. Once it has recorded, the DLL keeps a reference of itself and stays
 * mapped until `inject stop --unload`. All functions are safe from any thread; start and stop must
 * not be called from DllMain.
 *
 * All fields have a fixed width and no padding, the same for 32- and 64-bit processes; addresses
 * and handles have 64 bits.
 */
#ifndef STK_AGENT_H
#define STK_AGENT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_M_IX86) || defined(__i386__)
#define STK_AGENT_CALL __stdcall
#else
#define STK_AGENT_CALL
#endif

#define STK_CONTROL_VERSION 2u

/* stk_agent_config.flags */
#define STK_FLAG_ONCE 1u                   /* one sample of every thread, then stop */
#define STK_FLAG_CHECK_WALKS 2u            /* also walk each sample in the target (diagnostic;
                                              x64 only) */
#define STK_FLAG_UNGUARDED 4u              /* no guard process: the host must call stk_agent_stop
                                              before the process exits */
#define STK_FLAG_NO_COMMAND_LINE 8u        /* leave the command line out of the metadata */
#define STK_FLAG_POINTERS_ONLY 16u         /* store zeros for words of stacks and registers that
                                              are no addresses of mapped memory */
#define STK_FLAG_OPTIONS 32u               /* options and options_len are there */
#define STK_FLAG_FLIGHT 64u                /* inject's: the files are a ring (--flight) */
#define STK_FLAG_PAUSED 128u               /* begin paused, until a host asks to resume */
#define STK_FLAG_LOADED 256u               /* inject's: the reference of LoadLibrary by which the
                                              host has loaded the agent belongs to the agent now */
#define STK_FLAG_ROTATES 512u              /* the recording is to continue in other files
                                              (STK_REQUEST_FILE) */
#define STK_FLAG_TEST_FREEZE 0x0f000000u   /* fault injection for tests: a phase (<< 24), see
                                              stk_schema::control */
#define STK_FLAG_TEST_PANIC 0x80000000u    /* fault injection for tests */

/* stk_agent_config.embed */
#define STK_EMBED_NONE 0u
#define STK_EMBED_UNWIND 1u
#define STK_EMBED_FULL 2u

typedef struct stk_agent_config {
    uint32_t size;               /* sizeof(stk_agent_config) */
    uint32_t version;            /* STK_CONTROL_VERSION */
    uint64_t output;             /* file handle, open for writing at the end of an empty file; the
                                    agent closes it */
    uint32_t rate_mhz;           /* sampling rate in millihertz: 1000000 is 1 kHz; 1 to 20000000 */
    uint32_t max_stack_bytes;    /* most stack bytes per sample; 0 = the format's limit */
    uint32_t flags;              /* STK_FLAG_* */
    uint32_t embed;              /* STK_EMBED_* */
    uint32_t delay_ms;           /* wait before the first sample */
    uint32_t duration_ms;        /* length of the recording; 0 = until stopped */
    uint8_t uuid[16];            /* random identity of the trace */
    uint64_t metadata;           /* address of "key\0value\0...", UTF-8; 0 = none */
    uint32_t metadata_len;       /* bytes of metadata */
    uint32_t reserved;           /* 0 */
    uint64_t tables_dir;         /* address of a zero-terminated UTF-16 path of a folder of shared
                                    tables; 0 = none */
    uint64_t ended_event;        /* event handle that the agent signals at the end and closes;
                                    0 = none */
    uint64_t status_address;     /* out: address of the live stk_agent_state */
    uint32_t system_error;       /* out: the system's error code when the start failed */
    uint32_t reserved2;          /* 0 */
    uint64_t guard;              /* process handle (SYNCHRONIZE) of the guard; its end ends the
                                    recording; the agent closes it; 0 needs STK_FLAG_UNGUARDED */
    uint64_t max_bytes;          /* most bytes of the trace; 0 = no limit */
    uint64_t options;            /* with STK_FLAG_OPTIONS: address of "key\0value\0...", UTF-8; the
                                    keys are in schema/src/options.rs, one that the agent does not
                                    know is refused; hosts of this version may end before this */
    uint32_t options_len;        /* bytes of options, at most 65536 */
    uint32_t reserved3;          /* 0 */
} stk_agent_config;

/* What stk_agent_start returns. */
enum stk_start_result {
    STK_START_OK = 0,
    STK_START_ALREADY_RECORDING = 1,
    STK_START_BAD_CONFIG = 2,
    STK_START_BAD_OUTPUT = 3,
    STK_START_NO_MEMORY = 4,
    STK_START_NO_THREAD = 5,
    STK_START_DISABLED = 6,
    STK_START_WRONG_ARCHITECTURE = 7,
    STK_START_NO_GUARD = 8       /* neither guard nor STK_FLAG_UNGUARDED */
};

/* stk_agent_state.state */
#define STK_STATE_IDLE 0u
#define STK_STATE_RECORDING 1u
#define STK_STATE_STOPPING 2u
#define STK_STATE_STOPPED 3u
#define STK_STATE_FAILED 4u

/* stk_agent_state.rotation */
#define STK_ROTATION_NONE 0u       /* the recording ends with its file */
#define STK_ROTATION_CONTINUES 1u    /* a host continues it in another file */
#define STK_ROTATION_STOP 2u       /* another host wants it to end */

/* What one of the recorder's threads does. */
typedef struct stk_thread_activity {
    uint32_t tid;      /* thread id; 0 = there is no such thread */
    uint32_t step;     /* what it does, by the list STEPS of schema/src/control.rs */
    uint32_t rounds;   /* rounds of its loop since the recording began, modulo 2^32 */
    uint32_t reserved; /* 0 */
} stk_thread_activity;

typedef struct stk_agent_state {
    uint32_t size;               /* sizeof(stk_agent_state) */
    uint32_t version;            /* STK_CONTROL_VERSION */
    uint32_t state;              /* STK_STATE_* */
    uint32_t end_reason;         /* of the last recording: 1 stopped, 2 process exit, 3 duration,
                                    4 watchdog, 5 panic, 6 write error, 7 size limit, 8 guard gone;
                                    0 = none yet */
    uint32_t threads;            /* known live threads, without the recorder's own */
    uint32_t modules;            /* known live modules */
    uint64_t samples;            /* taken, including idle ones */
    uint64_t dropped;            /* lost */
    uint64_t bytes;              /* appended to the output */
    uint64_t passes;             /* of the sampler */
    uint64_t elapsed_ms;         /* since the start */
    uint32_t system_error;       /* of the last failure; 0 = none */
    uint32_t message_len;        /* bytes of message */
    uint8_t message[256];        /* the last failure in words, UTF-8 */
    uint64_t names;              /* address of the stk_name_mailbox; 0 = none yet; the struct of the
                                    first agents ends before this */
    uint64_t guard_board;        /* address of the stk_guard_board; 0 = none yet */
    uint64_t flight;             /* address of injects' requests for traces (--flight); 0 = none */
    uint64_t requests;           /* address of the stk_request_mailbox; 0 = none yet */
    uint32_t paused;             /* 1 while the recording is paused, or if it ended in a pause */
    uint32_t handler_begun;      /* calls of the agent's exception handler that have begun */
    uint32_t handler_ended;      /* those of them that have ended; older structs end before this */
    uint32_t reserved;           /* 0 */
    uint32_t rotation;           /* STK_ROTATION_*, written by hosts; the agent sets it back when its
                                    guard process has ended */
    uint32_t reserved_for_hosts; /* 0 */
    uint32_t file_index;         /* while rotation is not STK_ROTATION_NONE: the present file's place
                                    in the recording, from 1; written, like what follows, by the host
                                    that records; older structs end before this */
    uint32_t file_number;        /* the number in the present file's name */
    uint64_t earlier_samples;    /* of the recording's files before the present one: samples, ... */
    uint64_t earlier_dropped;    /* ... those lost, ... */
    uint64_t earlier_bytes;      /* ... bytes, ... */
    uint64_t earlier_ms;         /* ... and milliseconds */
    stk_thread_activity activity[8]; /* writer, watchdog, tables, code, runtimes, two spare samplers,
                                        sampler; older structs end before this */
    uint64_t held_p50_ns;        /* nanoseconds for which a sampled thread stood still: median, ... */
    uint64_t held_p999_ns;       /* ... 99.9th percentile ... */
    uint64_t held_max_ns;        /* ... and the longest; older structs end before these three */
} stk_agent_state;

/*
 * What the agent publishes for its guard process. If a sampler and the watchdog are both dead and
 * the process still lives 20 ms later, the guard resumes the thread in that sampler's word
 * (thread id << 32 | sequence << 8 | phase), once, unless the phase is 0.
 */
#define STK_GUARD_VERSION 1u

typedef struct stk_guard_board {
    uint32_t size;               /* sizeof(stk_guard_board) */
    uint32_t version;            /* STK_GUARD_VERSION */
    uint32_t watchdog;           /* thread id; 0 = none */
    uint32_t reserved;           /* 0 */
    struct {
        uint32_t sampler;        /* thread id; 0 = not in use */
        uint32_t reserved;       /* 0 */
        uint64_t word;
    } samplers[3];
} stk_guard_board;

/*
 * The mailbox for requests. A host takes the mutex lock, of which it duplicates the handle from the
 * process, writes kind, time and the text, adds 1 to request, sets the event wake (duplicated too),
 * waits until answer is that number, and gives the mutex back. Each field has one writer.
 */
#define STK_REQUESTS_VERSION 1u
#define STK_REQUEST_TEXT_BYTES 256

/* stk_request_mailbox.kind */
#define STK_REQUEST_MARK 1u        /* write a MARK of the process */
#define STK_REQUEST_PAUSE 2u       /* sample nothing from now on */
#define STK_REQUEST_RESUME 3u      /* sample again */
#define STK_REQUEST_FILE 4u        /* continue in another file without a gap; the text is the address of
                                    * an stk_agent_config in the process (8 bytes; of it output, uuid,
                                    * max_bytes and metadata are used) and the file's number (4) */

/* stk_request_mailbox.result */
#define STK_RESULT_DONE 0u
#define STK_RESULT_UNKNOWN 1u      /* a kind that the agent does not know */
#define STK_RESULT_WAS_SO 2u       /* paused already, or not paused */
#define STK_RESULT_ENDED 3u        /* the recording ended first */
#define STK_RESULT_REFUSED 4u      /* the file was not taken: it stays in its own */

typedef struct stk_request_mailbox {
    uint32_t size;               /* agent: sizeof(stk_request_mailbox); 0 before the first recording */
    uint32_t version;            /* agent: STK_REQUESTS_VERSION */
    uint64_t lock;               /* agent: handle of a mutex, in its process */
    uint64_t wake;               /* agent: handle of an event, in its process */
    uint32_t answer;             /* agent: number of the last request that it answered */
    uint32_t result;             /* agent: STK_RESULT_* of that request */
    uint32_t request;            /* host: number of the last request */
    uint32_t kind;               /* host: STK_REQUEST_* */
    uint64_t time;               /* host: QueryPerformanceCounter when the user asked; 0 = now */
    uint32_t text_len;           /* host: bytes of text */
    uint32_t reserved;           /* 0 */
    uint8_t text[STK_REQUEST_TEXT_BYTES]; /* host: UTF-8 */
} stk_request_mailbox;

/*
 * The mailbox for names. Through it the agent asks a host in another process for the names of code
 * addresses (inject.exe asks .NET's data access library). A host may ignore it. There is one
 * request at a time: the agent fills slots[0..count) and then increments request; the host answers
 * each slot and then sets answer to that number. While the host serves the mailbox, it increments
 * beat at least every second. Each field has one writer.
 */
#define STK_MAILBOX_VERSION 1u
#define STK_MAILBOX_SLOTS 64
#define STK_MAILBOX_NAME_BYTES 992

/* stk_name_mailbox.runtime_kind */
#define STK_RUNTIME_CORE 1u        /* coreclr.dll */
#define STK_RUNTIME_FRAMEWORK 2u   /* clr.dll, mscorwks.dll */
#define STK_RUNTIME_SINGLE_FILE 3u /* .NET linked into the program */

/* stk_name_mailbox.host_state */
#define STK_HOST_NONE 0u           /* no host has looked */
#define STK_HOST_LOOKS 1u          /* a host looks; message, if any, says what it waits for */
#define STK_HOST_ANSWERS 2u        /* the library answers; message describes the library */
#define STK_HOST_CANNOT 3u         /* there is no usable library; message says why */

/* stk_name_slot.state */
#define STK_SLOT_ASKED 0u
#define STK_SLOT_NAMED 1u
#define STK_SLOT_NAMELESS 2u       /* the runtime has no name for it */

typedef struct stk_name_slot {
    uint64_t address;            /* agent: an address inside the code */
    uint64_t base;               /* host: first address of the code with this name; 0 = not known */
    uint64_t size;               /* host: its bytes; 0 = not known */
    uint32_t state;              /* host: STK_SLOT_* (the agent sets it to STK_SLOT_ASKED) */
    uint32_t len;                /* host: bytes of name */
    uint8_t name[STK_MAILBOX_NAME_BYTES]; /* host: UTF-8 */
} stk_name_slot;

typedef struct stk_name_mailbox {
    uint32_t size;               /* agent: sizeof(stk_name_mailbox); 0 before the first recording */
    uint32_t version;            /* agent: STK_MAILBOX_VERSION */
    uint64_t runtime;            /* agent: load address of the runtime's module; 0 = ask nothing */
    uint32_t runtime_kind;       /* agent: STK_RUNTIME_* */
    uint32_t request;            /* agent: number of the request */
    uint32_t count;              /* agent: slots in use */
    uint32_t lock;               /* agent: handle of a mutex, in its process, which the host owns
                                    while it uses the mailbox; 0 = none */
    uint32_t beat;               /* host: increments it while it looks */
    uint32_t answer;             /* host: number of the last request that it answered */
    uint32_t host_state;         /* host: STK_HOST_* */
    uint32_t message_len;        /* host: bytes of message */
    uint8_t message[240];        /* host: for the user, UTF-8 */
    stk_name_slot slots[STK_MAILBOX_SLOTS];
} stk_name_mailbox;

/*
 * Starts a recording; returns an stk_start_result. The agent owns the output handle and the event
 * from now on.
 */
uint32_t STK_AGENT_CALL stk_agent_start(stk_agent_config *config);

/*
 * Stops the recording and waits until the trace is finalised: 0; 1 if nothing was recording. The
 * argument is ignored.
 */
uint32_t STK_AGENT_CALL stk_agent_stop(void *unused);

/*
 * For hosts in another process (inject stop --unload): with step 0 the agent takes back what it has
 * registered with the system, with step 1 it hands over its references of the DLL. Returns a LEAVE_
 * value of stk_schema::control. Programs free their own reference by FreeLibrary instead.
 */
uint32_t STK_AGENT_CALL stk_agent_leave(uintptr_t step);

/*
 * Copies the part of the status that both caller and agent know: 0; 1 if the size is below that of
 * the first agents (328) or the version differs.
 */
uint32_t STK_AGENT_CALL stk_agent_status(stk_agent_state *status);

/*
 * Records the calling thread's own stack now, with a tag: 0 recorded, 1 nothing is recording,
 * 2 dropped. In a recording with `inject --trigger api`, it and stk_capture_context leave a mark
 * too; with --flight, that has the last seconds written to a file.
 */
uint32_t STK_AGENT_CALL stk_capture(uint64_t tag);

/*
 * The functions below, and stk_capture, work on the calling thread alone: nothing is suspended, and
 * the recorder's own frames are no part of what they give. They may be called from any thread at
 * any time: before a recording and after it, from static initialisers, exception filters and
 * vectored handlers. The DLL must be loaded: whoever keeps their addresses holds a reference of it
 * (LoadLibrary, or GetModuleHandleEx without flags). `inject stop --unload` refuses once one of
 * them was called, and while somebody else holds a reference.
 *
 * In Rust: the feature api of the package stk-agent (agent/README.md).
 *
 * struct _CONTEXT is windows.h's CONTEXT of the program's own architecture.
 */
struct _CONTEXT;

/*
 * As stk_capture, from a context of the calling thread: of its present frame or of one above, such
 * as an exception's. 0 recorded, 1 nothing is recording, 2 dropped, 3 no context, or one without
 * CONTEXT_CONTROL and CONTEXT_INTEGER.
 */
uint32_t STK_AGENT_CALL stk_capture_context(const struct _CONTEXT *context, uint64_t tag);

/*
 * Fills pcs with at most max addresses and returns how many: the caller's instruction pointer
 * first, then the return addresses above it; skip of them are left out at the beginning. With a
 * context of the calling thread it begins at that context's instruction pointer. It needs no
 * recording. x64 and arm64 walk by the system's RtlVirtualUnwind, which takes ntdll's locks of
 * function tables; x86 follows frame pointers: the caller of a function without one is left out, and
 * where ebp holds something else the addresses end. A stack that the program has overwritten may
 * fault.
 */
uint32_t STK_AGENT_CALL stk_backtrace(const struct _CONTEXT *context, void **pcs, uint32_t max,
                                      uint32_t skip);

/*
 * Leaves a mark in the trace, with this moment and the calling thread: 0 recorded, 1 nothing is
 * recording, 2 dropped (256 marks wait), 3 no text or no UTF-8. Of a text, 250 bytes are kept.
 */
uint32_t STK_AGENT_CALL stk_mark(const char *text);

/*
 * Names the calling thread (UTF-8, 250 UTF-16 units are kept), as SetThreadDescription does, for
 * this and later recordings, debuggers included: 0 named, 2 the system cannot (before Windows 10
 * 1607), 3 no text or no UTF-8. A recording reads names twice a second, those of new threads more
 * often.
 */
uint32_t STK_AGENT_CALL stk_thread_name(const char *text);

#ifdef __cplusplus
}
#endif

#endif
