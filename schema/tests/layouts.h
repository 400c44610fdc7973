/* Structures that the recorder reads by offset, declared in the order in which phnt (ntpebteb.h, ntldr.h) and Wine (winternl.h)
 * publish them, for the fields that the SDK's headers leave out or call reserved. Declared here from those descriptions; only what
 * lies before the last field that is asserted. */
#include <stddef.h>
#include <windows.h>
#include <winternl.h>

/* PEB up to LoaderLock. */
typedef struct {
  UCHAR InheritedAddressSpace, ReadImageFileExecOptions, BeingDebugged, BitField;
  HANDLE Mutant;
  PVOID ImageBaseAddress;
  PVOID Ldr;
  PVOID ProcessParameters;
  PVOID SubSystemData;
  PVOID ProcessHeap;
  PRTL_CRITICAL_SECTION FastPebLock;
  PVOID AtlThunkSListPtr;
  PVOID IFEOKey;
  ULONG CrossProcessFlags;
  PVOID KernelCallbackTable;
  ULONG SystemReserved;
  ULONG AtlThunkSListPtr32;
  PVOID ApiSetMap;
  ULONG TlsExpansionCounter;
  PVOID TlsBitmap;
  ULONG TlsBitmapBits[2];
  PVOID ReadOnlySharedMemoryBase;
  PVOID SharedData;
  PVOID ReadOnlyStaticServerData;
  PVOID AnsiCodePageData;
  PVOID OemCodePageData;
  PVOID UnicodeCaseTableData;
  ULONG NumberOfProcessors;
  ULONG NtGlobalFlag;
  LARGE_INTEGER CriticalSectionTimeout;
  SIZE_T HeapSegmentReserve;
  SIZE_T HeapSegmentCommit;
  SIZE_T HeapDeCommitTotalFreeThreshold;
  SIZE_T HeapDeCommitFreeBlockThreshold;
  ULONG NumberOfHeaps;
  ULONG MaximumNumberOfHeaps;
  PVOID ProcessHeaps;
  PVOID GdiSharedHandleTable;
  PVOID ProcessStarterHelper;
  ULONG GdiDCAttributeList;
  PRTL_CRITICAL_SECTION LoaderLock;
} PHNT_PEB;

typedef struct {
  ULONG Length;
  BOOLEAN Initialized;
  HANDLE SsHandle;
  LIST_ENTRY InLoadOrderModuleList;
  LIST_ENTRY InMemoryOrderModuleList;
  LIST_ENTRY InInitializationOrderModuleList;
  PVOID EntryInProgress;
} PHNT_PEB_LDR_DATA;

typedef struct {
  LIST_ENTRY InLoadOrderLinks;
  LIST_ENTRY InMemoryOrderLinks;
  LIST_ENTRY InInitializationOrderLinks;
  PVOID DllBase;
  PVOID EntryPoint;
  ULONG SizeOfImage;
  UNICODE_STRING FullDllName;
  UNICODE_STRING BaseDllName;
  ULONG Flags;
} PHNT_LDR_DATA_TABLE_ENTRY;

typedef struct {
  HANDLE UniqueProcess, UniqueThread;
} PHNT_CLIENT_ID;

typedef struct {
  LONG ExitStatus;
  PVOID TebBaseAddress;
  PHNT_CLIENT_ID ClientId;
  ULONG_PTR AffinityMask;
  LONG Priority, BasePriority;
} PHNT_THREAD_BASIC_INFORMATION;

/* Documented with LdrRegisterDllNotification; loads and unloads have the same fields. */
typedef struct {
  ULONG Flags;
  const UNICODE_STRING *FullDllName;
  const UNICODE_STRING *BaseDllName;
  PVOID DllBase;
  ULONG SizeOfImage;
} LDR_DLL_NOTIFICATION;

/* Where both describe a field, the declarations above and the compiler's own winternl.h must agree. */
_Static_assert(offsetof(PHNT_PEB, Ldr) == offsetof(PEB, Ldr), "PEB.Ldr");
_Static_assert(offsetof(PHNT_PEB, ProcessParameters) == offsetof(PEB, ProcessParameters), "PEB.ProcessParameters");
_Static_assert(offsetof(PHNT_PEB, AtlThunkSListPtr32) == offsetof(PEB, AtlThunkSListPtr32), "PEB.AtlThunkSListPtr32");
_Static_assert(offsetof(PHNT_PEB_LDR_DATA, InMemoryOrderModuleList) == offsetof(PEB_LDR_DATA, InMemoryOrderModuleList), "PEB_LDR_DATA");
_Static_assert(offsetof(PHNT_LDR_DATA_TABLE_ENTRY, InMemoryOrderLinks) == offsetof(LDR_DATA_TABLE_ENTRY, InMemoryOrderLinks), "links");
_Static_assert(offsetof(PHNT_LDR_DATA_TABLE_ENTRY, DllBase) == offsetof(LDR_DATA_TABLE_ENTRY, DllBase), "DllBase");
_Static_assert(offsetof(PHNT_LDR_DATA_TABLE_ENTRY, FullDllName) == offsetof(LDR_DATA_TABLE_ENTRY, FullDllName), "FullDllName");
