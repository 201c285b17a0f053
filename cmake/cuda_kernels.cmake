# The client library's GPU kernels, compiled by nvcc and put into the library as an array: no library of CUDA is needed to run. Optional: without
# nvcc the tensors of a host's ranks are combined on the CPU.
option(TENSORLANE_NVCC "Compile the client library's GPU kernels, where there is an nvcc that can" ON)
set(cuda_kernels_flags -O3 -fmad=false -std=c++20 --expt-relaxed-constexpr)  # no contraction of a*b+c: the bits that daemon/reduce gives

# Sets `result` to what keeps the kernels from being compiled, or to "".
function(tl_no_cuda_kernels result)
  set(${result} "" PARENT_SCOPE)
  if(NOT TENSORLANE_NVCC)
    set(${result} "TENSORLANE_NVCC is off" PARENT_SCOPE)
    return()
  elseif(TENSORLANE_SANITIZE)
    set(${result} "sanitizers do not see them" PARENT_SCOPE)
    return()
  endif()
  find_program(TENSORLANE_NVCC_PROGRAM nvcc PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(NOT TENSORLANE_NVCC_PROGRAM)
    set(${result} "no nvcc in PATH, CUDA_HOME/bin and /usr/local/cuda/bin" PARENT_SCOPE)
    return()
  endif()
  # PTX for the oldest GPUs that this nvcc and the kernels know: those of 7.0 and newer take parameters that are __grid_constant__.
  execute_process(COMMAND ${TENSORLANE_NVCC_PROGRAM} --list-gpu-arch OUTPUT_VARIABLE architectures OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+" architectures "${architectures}")
  list(FILTER architectures EXCLUDE REGEX "^[1-6][0-9]$")
  list(SORT architectures COMPARE NATURAL)
  list(GET architectures 0 oldest)
  set(TENSORLANE_GPU_ARCHITECTURES "${architectures}" CACHE INTERNAL "Those that nvcc compiles the kernels for, without the dot, the oldest first")
  # One that is too old for C++20, or does not take this system's compiler, is found out here and not in the middle of a build.
  if(NOT TENSORLANE_NVCC_WORKS STREQUAL TENSORLANE_NVCC_PROGRAM)
    set(trial ${CMAKE_BINARY_DIR}/cuda-kernels/trial)
    file(WRITE ${trial}.cu "#include <concepts>\nstruct Many { int of[9]; };\n__global__ void trial(std::integral auto* of, const __grid_constant__ Many many) { *of = __builtin_bit_cast(int, 1.0f) + many.of[0]; }\ntemplate __global__ void trial(int*, const __grid_constant__ Many);\n")
    execute_process(COMMAND ${TENSORLANE_NVCC_PROGRAM} ${cuda_kernels_flags} -arch=compute_${oldest} -ptx -o ${trial}.ptx ${trial}.cu
                    RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(NOT status EQUAL 0)
      set(${result} "${TENSORLANE_NVCC_PROGRAM} compiles no C++20 here" PARENT_SCOPE)
      return()
    endif()
    set(TENSORLANE_NVCC_WORKS ${TENSORLANE_NVCC_PROGRAM} CACHE INTERNAL "The nvcc that was tried")
  endif()
endfunction()

# Adds the kernels to a target, whose sources are in client-lib/src/cuda, or what takes their place. TENSORLANE_KERNELS_PTX is then a file of the
# build, or "" without the kernels.
function(tl_cuda_kernels target)
  set(TENSORLANE_KERNELS_PTX "" CACHE INTERNAL "The kernels as PTX, or empty")
  tl_no_cuda_kernels(reason)
  if(reason)
    message(STATUS "GPU kernels: not built, ${reason}")
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/client-lib/src/cuda/kernels_absent.cc)
    return()
  endif()
  # PTX runs on all GPUs that are newer; of those that are common, machine code is made of it, so that nothing is compiled when a job starts.
  set(architectures ${TENSORLANE_GPU_ARCHITECTURES})
  list(GET architectures 0 oldest)
  set(codes compute_${oldest})
  foreach(architecture 80 90)
    if(architecture IN_LIST architectures)
      list(APPEND codes sm_${architecture})
    endif()
  endforeach()
  list(JOIN codes "," codes)
  message(STATUS "GPU kernels: built with ${TENSORLANE_NVCC_PROGRAM} for ${codes}")

  set(source ${PROJECT_SOURCE_DIR}/client-lib/src/cuda/kernels/combine.cu)
  set(made ${CMAKE_BINARY_DIR}/cuda-kernels)
  add_custom_command(OUTPUT ${made}/combine.ptx
    COMMAND ${TENSORLANE_NVCC_PROGRAM} ${cuda_kernels_flags} -I${PROJECT_SOURCE_DIR} -arch=compute_${oldest} -ptx -MD -MF ${made}/combine.d -o ${made}/combine.ptx ${source}
    DEPENDS ${source} DEPFILE ${made}/combine.d COMMENT "Compiling the GPU kernels" VERBATIM)
  add_custom_command(OUTPUT ${made}/image.cc
    COMMAND ${TENSORLANE_NVCC_PROGRAM} -fatbin -Xfatbin -compress-all "-gencode=arch=compute_${oldest},code=[${codes}]" -o ${made}/combine.fatbin ${made}/combine.ptx
    COMMAND ${CMAKE_COMMAND} -DIMAGE=${made}/combine.fatbin -DOUTPUT=${made}/image.cc -P ${PROJECT_SOURCE_DIR}/cmake/cuda_image.cmake
    DEPENDS ${made}/combine.ptx ${PROJECT_SOURCE_DIR}/cmake/cuda_image.cmake COMMENT "Assembling the GPU kernels" VERBATIM)
  target_sources(${target} PRIVATE ${made}/image.cc)
  set_source_files_properties(${made}/image.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # nothing else is compiled again with it
  set(TENSORLANE_KERNELS_PTX ${made}/combine.ptx CACHE INTERNAL "The kernels as PTX, or empty")
endfunction()
