# Deep calls in CMake's own interpreter, and its regular expressions; prints "ready" when it is at work.
function(recurse n)
  if(n GREATER 0)
    math(EXPR next "${n}-1")
    string(REGEX REPLACE "a+b" "x" out "aaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbb")
    recurse(${next})
  endif()
endfunction()

execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "ready")
foreach(round RANGE 100000)
  recurse(60)
endforeach()
