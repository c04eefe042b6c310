# Compilation settings of all parts of Primus (language level, warnings, sanitizers), and the functions with which the
# folders declare their targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()
if(PRIMUS_ASSERTS)
  foreach(type RELEASE RELWITHDEBINFO MINSIZEREL)
    string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_${type} "${CMAKE_CXX_FLAGS_${type}}")
  endforeach()
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  if(PRIMUS_PRECOMPILED_HEADERS AND NOT DEFINED ENV{CCACHE_SLOPPINESS})
    # Without this, ccache does not cache files that use precompiled headers. GCC itself checks that the
    # macros match.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  endif()
endif()

find_package(Threads REQUIRED)

# FP contraction and fast-math stay off: results must not depend on the operations that the
# optimizer fuses. Designated initializers omit members on purpose, so the warning about missing
# members is off.
add_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers
                    -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False positives: in std::string (GCC bug 105329), and in fmt's fill of up to four bytes.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict> $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow>)
endif()
if(PRIMUS_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # By default g++ starts garbage collection at about 100 MB, which takes a tenth of the time of compiling a group.
  # Without collection, a group needs 300 to 700 MB.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=800000>)
endif()
if(NOT PRIMUS_CHECK_FORMATS)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-DFMT_CONSTEVAL=>)
endif()
if(PRIMUS_SANITIZE)
  add_compile_options(-fsanitize=${PRIMUS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PRIMUS_SANITIZE})
  if(PRIMUS_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # ThreadSanitizer does not support fences, and g++ warns about fences. Our only fence orders
    # non-temporal stores. Threads synchronize through atomics.
    add_compile_options(-Wno-tsan)
  endif()
  set(slow_down 10)  # factor for the time limits of tests, which is the maximum slow-down
else()
  set(slow_down 1)
endif()
set(PRIMUS_COLD_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O1>)
# With -O1, tests compile in two thirds of the time, and with sanitizers in half the time. The tested code keeps its
# optimization level. Folders whose tests calculate nothing set -O0, with which their tests compile even faster.
set(PRIMUS_TEST_OPTIONS -O1)
if(PRIMUS_SANITIZE)
  set(PRIMUS_TEST_OPTIONS -O0)
endif()
math(EXPR PRIMUS_FAST_TIMEOUT "120 * ${slow_down}")
math(EXPR PRIMUS_SLOW_TIMEOUT "1200 * ${slow_down}")

# Precompiled headers: the standard library and fmt take a quarter of a file's compile time, JSON another
# quarter, and GoogleTest a quarter of a test's. Off in all presets but release, so that missing includes are
# errors.
if(PRIMUS_PRECOMPILED_HEADERS)
  # json.hpp defines two literals, "..."_json and "..."_json_pointer, as inline functions. These
  # functions need the entire parser, so every file would instantiate the parser, which takes 0.7 s.
  # Primus does not use these literals, so this copy only declares them.
  find_path(PRIMUS_JSON_INCLUDE nlohmann/json.hpp REQUIRED)
  file(READ ${PRIMUS_JSON_INCLUDE}/nlohmann/json.hpp json_text)
  string(REGEX REPLACE "(operator *\"\" *_json(_pointer)?\\([^)]*\\))[ \n]*{[^}]*}" "\\1;" json_text "${json_text}")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/json_without_literals.hpp CONTENT "${json_text}" @ONLY)
  set(standard_headers <algorithm> <array> <charconv> <chrono> <cmath> <cstring> <filesystem> <functional> <map> <memory>
      <optional> <set> <span> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector> <fmt/format.h>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # The standard library disables these false positives by pragmas, which precompiled headers lose (GCC bug
    # 64117).
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds> $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overread>)
  endif()
endif()

# primus_precompiled(<target> <kind> [OPTIONS ...] [HEADERS ...] [DEPS ...]): gives a target the precompiled headers of
# its kind, if enabled. Precompiled headers require identical options, so each kind of file has its own.
function(primus_precompiled target kind)
  if(NOT PRIMUS_PRECOMPILED_HEADERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "OPTIONS;HEADERS;DEPS" ${ARGN})
  set(owner primus_precompiled_${kind})
  if(NOT TARGET ${owner})
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/${owner}.cpp CONTENT "// Owns precompiled headers.\n")
    add_library(${owner} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/generated/${owner}.cpp)
    target_include_directories(${owner} SYSTEM PRIVATE ${CMAKE_BINARY_DIR}/generated)
    target_compile_options(${owner} PRIVATE ${ARG_OPTIONS})
    target_link_libraries(${owner} PRIVATE ${ARG_DEPS})
    target_precompile_headers(${owner} PRIVATE ${standard_headers} ${ARG_HEADERS})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      target_compile_options(${owner} PRIVATE -fPIE)
      set_target_properties(${owner} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# primus_reads_keys(<file> <result>): whether the file includes config/trainer_config.h, which changes with each
# new key.
function(primus_reads_keys file result)
  set(include)
  if(EXISTS ${file})  # the build writes the other files
    file(STRINGS ${file} include LIMIT_COUNT 1 REGEX "^#include \"config/trainer_config\\.h\"")
  endif()
  set(${result} ${include} PARENT_SCOPE)
endfunction()

# primus_unity(<target> FILES <files>... [APART <wildcards>...]): with PRIMUS_UNITY, compiles the files in
# groups of up to PRIMUS_UNITY_GROUP, so that headers are read once per group, and templates are
# instantiated once per group. Groups are small, because a changed file recompiles its entire group.
# Files that read keys have their own groups, so that a new key recompiles few files. APART: files
# with file-local names that other files of the target also define. Off in all presets but fuzz, so that
# missing includes are errors.
set(PRIMUS_UNITY_GROUP 8)
function(primus_unity target)
  if(NOT PRIMUS_UNITY)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "FILES;APART" ${ARGN})
  file(GLOB apart ${ARG_APART})
  set(keys)
  set(other)
  foreach(file ${ARG_FILES})
    cmake_path(ABSOLUTE_PATH file NORMALIZE OUTPUT_VARIABLE path)
    if(file MATCHES "\\.cpp$" AND NOT path IN_LIST apart)
      primus_reads_keys(${path} reads_keys)
      if(reads_keys)
        list(APPEND keys ${file})
      else()
        list(APPEND other ${file})
      endif()
    endif()
  endforeach()
  foreach(kind keys other)
    list(LENGTH ${kind} together)
    if(together GREATER 1)
      # The minimum number of groups, with nearly equal sizes.
      math(EXPR groups "(${together} + ${PRIMUS_UNITY_GROUP} - 1) / ${PRIMUS_UNITY_GROUP}")
      set(index 0)
      foreach(file ${${kind}})
        math(EXPR group "${index} * ${groups} / ${together}")
        math(EXPR index "${index} + 1")
        set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${kind}_${group})
      endforeach()
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # The warnings about shadowed names and about subobjects treat the files of a group like headers. The third warning
  # has false positives where much code is inlined. Only g++ has the last two.
  target_compile_options(${target} PRIVATE -Wno-shadow)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage -Wno-maybe-uninitialized)
  endif()
endfunction()

# primus_library(<name> [COLD] [UNITY [APART <wildcards>...]] [DEPS <libs>...]): a static library of all .cpp
# files in the current folder, without subfolders. Link it as primus::<name>. Includes are relative to src/:
# #include "base/error.h". COLD: the code takes no noticeable part of a step's time; it is built with -O1,
# which compiles in two thirds of the time. UNITY, APART: see primus_unity.
function(primus_library name)
  cmake_parse_arguments(ARG "COLD;UNITY" "" "DEPS;SOURCES;APART" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS *.cpp)
  endif()
  add_library(primus_${name} STATIC ${ARG_SOURCES})
  add_library(primus::${name} ALIAS primus_${name})
  target_include_directories(primus_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(primus_${name} PUBLIC ${ARG_DEPS} Threads::Threads)
  if(ARG_COLD)
    target_compile_options(primus_${name} PRIVATE ${PRIMUS_COLD_OPTIONS})
    primus_precompiled(primus_${name} cold OPTIONS ${PRIMUS_COLD_OPTIONS} HEADERS <json_without_literals.hpp>)
  else()
    primus_precompiled(primus_${name} hot HEADERS <json_without_literals.hpp>)
  endif()
  if(ARG_UNITY)
    primus_unity(primus_${name} FILES ${ARG_SOURCES} APART ${ARG_APART})
  endif()
endfunction()

# primus_source_list(<target> [STATEMENTS] LIKE <regex> FORM <regex> MACRO <name>
# TYPE <type> SOURCES <files>... OUTPUT <path>): collects definitions from source files into a header of lines
# MACRO(name), or into the array kAll<type>. The target includes the header by that path. So a new definition needs only
# a new file. (Self-registering objects do not work, because linkers drop them from static libraries.) Lines that match
# LIKE are definitions and must have the form FORM, whose regex group is the name. With STATEMENTS, LIKE is the
# beginning of a line, and a definition may take several lines: it ends before the first semicolon. The header is
# written during the build, and only if its content has changed.
function(primus_source_list target)
  cmake_parse_arguments(ARG "STATEMENTS" "LIKE;FORM;MACRO;TYPE;OUTPUT" "SOURCES" ${ARGN})
  set(list ${CMAKE_CURRENT_BINARY_DIR}/generated/${ARG_OUTPUT})
  add_custom_command(
    OUTPUT ${list}
    COMMAND ${CMAKE_COMMAND} "-DLIKE=${ARG_LIKE}" "-DFORM=${ARG_FORM}" -DMACRO=${ARG_MACRO} -DTYPE=${ARG_TYPE}
            -DSTATEMENTS=${ARG_STATEMENTS} "-DSOURCES=${ARG_SOURCES}" -DOUTPUT=${list} -P ${PROJECT_SOURCE_DIR}/cmake/SourceList.cmake
    DEPENDS ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/cmake/SourceList.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${list})
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)
endfunction()

# primus_entry_list(<target> TYPE <type> SOURCES <files>... OUTPUT <path>): declares each `extern const <type>
# kName{...}` at the start of a line, and the array kAll<type> of pointers to them. A registry includes it
# once, in the type's namespace; base/entries.h has the code that registries share.
function(primus_entry_list target)
  cmake_parse_arguments(ARG "" "TYPE;OUTPUT" "SOURCES" ${ARGN})
  primus_source_list(${target} LIKE "(^|[^A-Za-z0-9_])const ${ARG_TYPE} k[A-Za-z0-9]+"
                     FORM "extern const ${ARG_TYPE} (k[A-Za-z0-9]+)" TYPE ${ARG_TYPE}
                     SOURCES ${ARG_SOURCES} OUTPUT ${ARG_OUTPUT})
endfunction()

# primus_embed(<output.cpp> HEADER <path> NAMESPACE <name> FILES <files>...): embeds text files into the program, as
# strings that the header declares in the namespace: page.js becomes k_page_js.
function(primus_embed output)
  cmake_parse_arguments(ARG "" "HEADER;NAMESPACE" "FILES" ${ARGN})
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DHEADER=${ARG_HEADER} -DNAMESPACE=${ARG_NAMESPACE} "-DFILES=${ARG_FILES}" -P ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake
    DEPENDS ${ARG_FILES} ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake
    VERBATIM)
endfunction()

# primus_kernel_list(<target> HEADERS <files>... OUTPUT <path>): writes PRIMUS_KERNEL(Name) for each kernel's
# argument struct, in the order of files and lines. The first line of such a struct is:
#   static constexpr KernelId kId = KernelId::kName;
# Targets that link <target> can include the list.
function(primus_kernel_list target)
  cmake_parse_arguments(ARG "" "OUTPUT" "HEADERS" ${ARGN})
  primus_source_list(${target} LIKE "KernelId kId" FORM "  static constexpr KernelId kId = KernelId::k([A-Za-z0-9]+)"
                     MACRO PRIMUS_KERNEL SOURCES ${ARG_HEADERS} OUTPUT ${ARG_OUTPUT})
  target_include_directories(${target} PUBLIC ${CMAKE_CURRENT_BINARY_DIR}/generated)
endfunction()

# primus_operator_list(<file> <macro> <sources>...): writes a header with a line MACRO(<folder>) per folder of
# the sources, so that an operator's kernels need no entry in a list.
function(primus_operator_list file macro)
  set(operators)
  foreach(source ${ARGN})
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME operator)
    list(APPEND operators ${operator})
  endforeach()
  list(REMOVE_DUPLICATES operators)
  list(TRANSFORM operators REPLACE "(.+)" "${macro}(\\1)")
  list(JOIN operators "\n" operator_lines)
  file(CONFIGURE OUTPUT ${file} CONTENT "// Written by primus_operator_list (cmake/PrimusBuild.cmake).\n@operator_lines@\n" @ONLY)
endfunction()

# primus_plugin_abi(<name> HEADER <path> CONSTANT <name> NAMESPACE <name> INPUTS <headers>...): defines
# primus::<name>, which provides a header with the ABI number of plug-ins. The number changes whenever a header
# of INPUTS changes; the program and its plug-ins share these headers.
function(primus_plugin_abi name)
  cmake_parse_arguments(ARG "" "HEADER;CONSTANT;NAMESPACE" "INPUTS" ${ARGN})
  set(header ${CMAKE_CURRENT_BINARY_DIR}/generated/${ARG_HEADER})
  add_custom_command(
    OUTPUT ${header}
    COMMAND ${CMAKE_COMMAND} "-DINPUTS=${ARG_INPUTS}" -DOUTPUT=${header} -DNAME=${ARG_CONSTANT}
            -DNAMESPACE=${ARG_NAMESPACE} "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
            -P ${PROJECT_SOURCE_DIR}/cmake/PluginAbi.cmake
    DEPENDS ${ARG_INPUTS} ${PROJECT_SOURCE_DIR}/cmake/PluginAbi.cmake
    VERBATIM)
  add_custom_target(primus_${name}_header DEPENDS ${header})
  add_library(primus_${name} INTERFACE)
  add_library(primus::${name} ALIAS primus_${name})
  target_include_directories(primus_${name} INTERFACE ${CMAKE_CURRENT_BINARY_DIR}/generated)
  add_dependencies(primus_${name} primus_${name}_header)
endfunction()

# primus_device_plugin(<kind> SOURCES ... DEPS <libs>... OUTPUT_DIRECTORY <folder>): builds
# libprimus_<kind>.so. It exports only the plug-in's entry point, and prefers its own symbols to the
# program's.
function(primus_device_plugin kind)
  cmake_parse_arguments(ARG "" "OUTPUT_DIRECTORY" "DEPS;SOURCES" ${ARGN})
  set(target primus_${kind}_plugin)
  add_library(${target} MODULE ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS})
  target_link_options(${target} PRIVATE -Wl,-Bsymbolic -Wl,--exclude-libs,ALL -Wl,--gc-sections)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME primus_${kind} CXX_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON
                                             LIBRARY_OUTPUT_DIRECTORY ${ARG_OUTPUT_DIRECTORY})
endfunction()

# primus_test(<name> [SLOW] [UNITY [APART <wildcards>...]] [DEPS <libs>...] [SOURCES ...] [SLOW_TESTS <filters>...]): a
# GoogleTest program of all *_test.cpp files in the current folder. SLOW tests have the ctest label "slow", which
# ./test.sh fast excludes. SLOW_TESTS are GoogleTest filters of tests in a fast program that are slow; ctest runs them as
# <name>_slow, with the labels "slow" and "part". UNITY, APART: see primus_unity.
function(primus_test name)
  cmake_parse_arguments(ARG "SLOW;UNITY" "" "DEPS;SOURCES;APART;SLOW_TESTS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS *_test.cpp)
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE PRIMUS_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set_target_properties(${name}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_compile_options(${name}_test PRIVATE ${PRIMUS_TEST_OPTIONS})
  primus_precompiled(${name}_test test${PRIMUS_TEST_OPTIONS} OPTIONS ${PRIMUS_TEST_OPTIONS} DEPS GTest::gtest GTest::gmock
                     HEADERS <fstream> <sstream> <json_without_literals.hpp> <gmock/gmock.h> <gtest/gtest.h>)
  if(ARG_UNITY)
    primus_unity(${name}_test FILES ${ARG_SOURCES} APART ${ARG_APART})
  endif()
  if(ARG_SLOW_TESTS)
    list(JOIN ARG_SLOW_TESTS ":" slow)
    add_test(NAME ${name}_slow COMMAND ${name}_test --gtest_filter=${slow})
    set_tests_properties(${name}_slow PROPERTIES LABELS "slow;part" TIMEOUT ${PRIMUS_SLOW_TIMEOUT})
    add_test(NAME ${name} COMMAND ${name}_test --gtest_filter=-${slow})
  else()
    add_test(NAME ${name} COMMAND ${name}_test)
  endif()
  if(ARG_SLOW)
    set_tests_properties(${name} PROPERTIES LABELS slow TIMEOUT ${PRIMUS_SLOW_TIMEOUT})
  else()
    set_tests_properties(${name} PROPERTIES LABELS fast TIMEOUT ${PRIMUS_FAST_TIMEOUT})
  endif()
endfunction()

# primus_fuzzer(<name> [DEPS ...]): the libFuzzer target tests/fuzz/<name>_fuzz.cpp; built only with
# PRIMUS_FUZZ.
function(primus_fuzzer name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_executable(${name}_fuzz ${name}_fuzz.cpp)
  target_link_libraries(${name}_fuzz PRIVATE ${ARG_DEPS})
  target_compile_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endfunction()
