// The parts of busy. Each is one thread's work; each gives the same result every time, so that a disturbed one is noticed.
#pragma once

#include "portable.hpp"

// Descends `depth` calls through two functions in turn and works at the bottom. recursion.cpp
uint64_t recurse_even(unsigned depth, uint64_t seed);

// Calls small functions in loops. leaf_loops.cpp
uint64_t leaf_loops(uint64_t seed);

// Works in helpers that were inlined into it. größe.cpp
uint64_t measure_sizes(uint64_t seed);

// Waits for `event` without end: the stack of a thread that does nothing. False if the wait failed. waiter.cpp
bool wait_for_event(HANDLE event);

// A thread for each state: computes until `stop`; sleeps until then; waits for a lock that another thread owns. states.cpp
uint64_t spin_until(const volatile LONG *stop);
bool sleep_until(const volatile LONG *stop);
bool wait_for_section(CRITICAL_SECTION *section);
bool wait_for_srw_lock(SRWLOCK *lock);

// Starts a named thread, waits for its end and gives its result. spawner.cpp
uint64_t spawn_worker(unsigned number, uint64_t seed);

// Loads one plug-in, calls it for a while, unloads it, and does the same with the other. plugins.cpp
// False if a plug-in could not be loaded; `same_place` counts how often the second lay where the first had been.
bool use_plugins(uint64_t seed, uint64_t *result, unsigned *same_place);

// Names a thread. busy.cpp
void name_thread(HANDLE thread, const wchar_t *name);
