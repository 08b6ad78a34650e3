# tests/gpu/NAME.cpp is the test gpu.NAME where there is CUDA (and NCCL for those named for it). They are compiled and
# linked everywhere; without a GPU they print so and are skipped. scripts/test-gpu runs them on a machine that has one.
# Those with LibTorch need one for CUDA, which distributions do not have: scripts/test-gpu alone builds them.
if(TARGET trireme::cuda)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/gpu/*.cpp)
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    trireme_uses_torch(torch ${source})
    if(torch)
      continue()
    endif()
    set(library trireme::cuda)
    if(name MATCHES "^nccl")
      set(library trireme::nccl)
    endif()
    if(NOT TARGET ${library})
      message(STATUS "trireme: gpu.${name} needs NCCL and is left out")
      continue()
    endif()
    add_executable(gpu.${name} ${source})
    target_link_libraries(gpu.${name} PRIVATE ${library} trireme_warnings)
    trireme_quick(gpu.${name})
    trireme_add_test(gpu.${name} TIMEOUT 600 LABELS gpu COMMAND $<TARGET_FILE:gpu.${name}>)
  endforeach()
  # The ladder of comm::nccl on a stand-in for CUDA and NCCL, which needs their headers only.
  if(TARGET trireme::nccl)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/comm/stand_in/*.cpp)
    add_executable(comm.nccl_stand_in ${sources})
    get_target_property(nccl_include NCCL::nccl INTERFACE_INCLUDE_DIRECTORIES)
    target_include_directories(comm.nccl_stand_in SYSTEM PRIVATE ${nccl_include} ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(comm.nccl_stand_in PRIVATE trireme::trireme trireme_warnings)
    trireme_add_test(comm.nccl_stand_in TIMEOUT 900 TAKES 80 LABELS comm PROPERTIES PROCESSORS 3
                     COMMAND $<TARGET_FILE:comm.nccl_stand_in>)
    # ops::on<cuda> and trainings with it: the same stand-in, whose streams run the kernels' source in the stand-in for
    # a GPU's threads. Each *_test.cpp is a test. scripts/test-gpu runs the same files on a GPU.
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/simt/cuda/*_test.cpp)
    set(trainings ${sources})
    list(FILTER sources EXCLUDE REGEX
         "/(compressed|gpt|memory|models|nccl|serving|streams|training|vision)_test\\.cpp$")
    list(REMOVE_ITEM trainings ${sources})
    add_library(simt_kernel_tests OBJECT EXCLUDE_FROM_ALL ${sources})
    add_library(simt_trainings OBJECT EXCLUDE_FROM_ALL ${trainings})
    foreach(library IN ITEMS simt_kernel_tests simt_trainings)
      target_link_libraries(${library} PUBLIC
        trireme_cuda_stand_in ${TRIREME_LIBRARY} trireme_warnings trireme_catch_main)
      trireme_quick(${library})  # what computes is in the library and in the stand-in
      trireme_share_headers(${library} <tests/catch.hpp> <trireme/trireme.hpp>)
    endforeach()
    add_executable(simt.cuda simt/cuda/network_kernels.cpp)
    target_link_libraries(simt.cuda PRIVATE simt_kernel_tests simt_trainings trireme_simulated_cuda)
    foreach(source IN LISTS sources trainings)
      cmake_path(GET source STEM name)
      string(REGEX REPLACE "_test$" "" name ${name})
      # Tests of single kernels have one thread, trainings one for each rank.
      set(processors 2)
      if(source IN_LIST trainings)
        set(processors 3)
      endif()
      trireme_add_test(simt.${name} TIMEOUT 900 LABELS simt PROPERTIES PROCESSORS ${processors}
                       COMMAND $<TARGET_FILE:simt.cuda> "[${name}]")
    endforeach()
    # Trainings by command: train_gpt/device_test.py starts the program of scripts/train --device simt.
    if(TARGET train_gpt_simt AND TEST train_gpt.device_py)
      set_target_properties(train_gpt_simt PROPERTIES EXCLUDE_FROM_ALL FALSE)
      set_property(TEST train_gpt.device_py APPEND PROPERTY LABELS simt)
    endif()
    # Trainings once more in orders that streams and threads allow besides that of the other tests.
    foreach(order IN ITEMS 1 2 4)
      trireme_add_test(simt.training.order${order} TIMEOUT 900 LABELS simt PROPERTIES PROCESSORS 3
                       COMMAND ${CMAKE_COMMAND} -E env TRIREME_SIMT_ORDER=${order} $<TARGET_FILE:simt.cuda>
                               "[training]")
    endforeach()
    # The tests of single kernels once more with kernels that are compiled for the sanitizers, which know the
    # simulator's threads: they find races, and reads and writes past an end. The tests themselves and the stand-in have
    # one thread, and are the objects of simt.cuda. Kernels of attention take 3 minutes: simt.attention.SANITIZER has
    # them, and is left to be built and run by hand.
    if(TRIREME_SANITIZED_TESTS)
      # Checks of addresses as calls, and none besides for what they find, too: half of the compiler's time.
      set(flags_thread ${trireme_simulator_flags})
      set(flags_address ${trireme_simulator_flags} -fno-sanitize=null,vptr,object-size)
      if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        list(APPEND flags_address --param=asan-instrumentation-with-call-threshold=0)
      endif()
      foreach(sanitizer IN ITEMS thread address)
        add_executable(simt.cuda.${sanitizer} simt/cuda/kernels.cpp)
        target_compile_definitions(simt.cuda.${sanitizer} PRIVATE SIMT_WITHOUT_ATTENTION)
        add_executable(simt.attention.${sanitizer} EXCLUDE_FROM_ALL
                       simt/cuda/kernels.cpp simt/cuda/attention_kernels.cpp)
        foreach(target IN ITEMS simt.cuda.${sanitizer} simt.attention.${sanitizer})
          target_compile_options(${target} PRIVATE ${sanitizer_flags_${sanitizer}} ${flags_${sanitizer}})
          target_link_options(${target} PRIVATE ${sanitizer_flags_${sanitizer}})
          target_link_libraries(${target} PRIVATE simt_kernel_tests $<TARGET_OBJECTS:trireme_cuda_stand_in>)
        endforeach()
        # Without the frames kept after a return: before GCC 12.4 they are aligned to 32 bytes, and AVX-512 wants 64.
        trireme_add_test(simt.cuda.${sanitizer} TIMEOUT 1200 TAKES 90 LABELS simt PROPERTIES PROCESSORS 2
                         COMMAND ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_stack_use_after_return=0
                                 TRIREME_TEST_SANITIZED=${sanitizer}
                                 $<TARGET_FILE:simt.cuda.${sanitizer}> "~[attention]")
      endforeach()
    endif()
  endif()
else()
  message(STATUS "trireme: no CUDA, so the tests in tests/gpu are left out")
endif()
