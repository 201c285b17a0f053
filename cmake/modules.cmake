# A module is a folder with one library target. Its headers can be included by others only through the include path that the
# target publishes, and that path holds nothing but this module: a link named like the folder. So an include that the
# dependency list does not allow is a compile error, not a review comment.
#
#   tl_module(tl_fabric common/fabric SOURCES fabric.cc loader.cc DEPENDS tl_base yaml-cpp)
#
# DEPENDS lists what its headers or sources may include. A module without SOURCES is header-only.
function(tl_module target folder)
  cmake_parse_arguments(MODULE "" "" "SOURCES;DEPENDS" ${ARGN})
  string(REPLACE "/" "-" flat ${folder})
  set(view ${CMAKE_BINARY_DIR}/modules/${flat})
  get_filename_component(parent ${view}/${folder} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${view}/${folder} SYMBOLIC)
  if(MODULE_SOURCES)
    list(TRANSFORM MODULE_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/${folder}/)
    add_library(${target} STATIC ${MODULE_SOURCES})
    target_include_directories(${target} PUBLIC ${view})
    target_link_libraries(${target} PUBLIC ${MODULE_DEPENDS} PRIVATE tl_options)
    # The presets compile several files of a module at once, which halves the time. Not where single files count: mutants replace those of the
    # engine, and what runs in a client's process takes those that need no library.
    if(folder MATCHES "^(common/(base|files|nccl)|daemon/(engine|host|transport/datagram))" AND NOT TENSORLANE_SANITIZE)
      set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
    endif()
    # Not on the way of a tensor, and most of what there is to compile. Some of it computes long enough for an optimiser to pay under sanitizers, too;
    # what mostly waits does not there, though it is on that way.
    if(folder MATCHES "^(tests/|simulator/orders|switch-config/deadlock|common/json)")
      target_compile_options(${target} PRIVATE -O1)
    elseif(folder MATCHES "^(monitor/|switch-config|daemon/(config|control|planning|wiring)|common/(command_line|fabric|files|nccl|probe|process|spans))")
      target_compile_options(${target} PRIVATE ${TENSORLANE_SOON_COMPILED})
    elseif(TENSORLANE_SANITIZE AND folder MATCHES "^daemon/(session|telemetry|transport/(dpdk/ethdev|handshake|mixed|rdma|resume))")
      target_compile_options(${target} PRIVATE ${TENSORLANE_SOON_COMPILED})
    endif()
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${view})
    target_link_libraries(${target} INTERFACE ${MODULE_DEPENDS})
  endif()
endfunction()

# The commands of a program: compiled together, because parsing command lines is most of what each of them has to compile.
function(tl_commands target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 10)
  target_compile_options(${target} PRIVATE -O1)
  target_compile_definitions(${target} PRIVATE TENSORLANE_VERSION="${PROJECT_VERSION}")
endfunction()

# The target tests-LABEL builds what the tests of a label run: tl_label_needs(LABEL TARGETS...). tests/run builds only these in the
# sanitizer builds. tl_test calls it for its own program.
function(tl_label_needs label)
  if(NOT TARGET tests-${label})
    add_custom_target(tests-${label})
  endif()
  add_dependencies(tests-${label} ${ARGN})
endfunction()

# Tests that tests/run leaves out unless it is asked to be thorough: tl_thorough(NAMES...). All of a folder are where TENSORLANE_THOROUGH_FOLDER is set:
# the target tests-thorough builds them, and not that of their label.
function(tl_thorough)
  foreach(name ${ARGN})
    set_property(TEST ${name} APPEND PROPERTY LABELS thorough)
  endforeach()
endfunction()

# Cases of a GoogleTest program that take long, and whose kind its other cases show: a test of their own, NAME_thorough, and no part of NAME.
# tl_thorough_cases(NAME CASE...), each as --gtest_filter has it.
function(tl_thorough_cases name)
  list(JOIN ARGN ":" cases)
  get_property(labels TEST ${name} PROPERTY LABELS)
  get_property(timeout TEST ${name} PROPERTY TIMEOUT)
  get_property(environment TEST ${name} PROPERTY ENVIRONMENT)
  add_test(NAME ${name}_thorough COMMAND ${name} --gtest_filter=${cases})
  set_tests_properties(${name}_thorough PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} ENVIRONMENT "${environment}")
  tl_thorough(${name}_thorough)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=-${cases}")
endfunction()

# A GoogleTest program: tl_test(NAME LABEL [COMPUTES] SOURCES... DEPENDS... PROGRAMS...). Registers the program with ctest under LABEL;
# PROGRAMS are the targets that it starts. Unit tests are compiled without optimiser, which takes half of the time, but for those that COMPUTE
# for long: what is tested is in modules.
function(tl_test name label)
  cmake_parse_arguments(TEST "COMPUTES" "TIMEOUT" "SOURCES;DEPENDS;PROGRAMS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE tl_options ${TEST_DEPENDS} fmt::fmt GTest::gmock GTest::gtest_main)
  set(level 1)
  if(label STREQUAL unit AND NOT TEST_COMPUTES)
    set(level 0)
  endif()
  target_compile_options(${name} PRIVATE -O${level} ${TENSORLANE_PRECOMPILE})
  target_precompile_headers(${name} REUSE_FROM tl_test_headers_${level})
  # The compiler's own way, which is alike in a program and in the library that precompiles; CMake has two words for it.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${TEST_TIMEOUT})
  if(TENSORLANE_THOROUGH_FOLDER)
    tl_thorough(${name})
    set(label thorough)
  endif()
  tl_label_needs(${label} ${name} ${TEST_PROGRAMS})
endfunction()
