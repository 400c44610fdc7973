#include "parts.hpp"

// Something is left to do after the call: as its last act it would become a jump, and this function would not be on the stack.
BUSY_NOINLINE bool wait_for_event(HANDLE event) {
  return WaitForSingleObject(event, INFINITE) == WAIT_OBJECT_0;
}
