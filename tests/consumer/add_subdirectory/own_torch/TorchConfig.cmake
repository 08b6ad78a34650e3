# Stands in for LibTorch's, of which only the target's name matters here.
add_library(torch INTERFACE IMPORTED)
set_target_properties(torch PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_LIST_DIR}/include)
set(TORCH_LIBRARIES torch)
set(TORCH_FOUND TRUE)
