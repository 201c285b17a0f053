// The unwinder that GCC links into the plugin asks the C library by a function of glibc 2.35. This one takes its place,
// so that the plugin can be loaded where glibc is older. CMake leaves it out where the C library lacks that function.
#include <dlfcn.h>
#include <link.h>

#include <cstddef>

namespace {

// NOLINTBEGIN(performance-no-int-to-ptr): the loader gives addresses as numbers

struct Search {
  ElfW(Addr) address;
  dl_find_object* result;
};

// Ends the walk, with 1, at the object that has the address in one of its segments.
int look(dl_phdr_info* object, std::size_t /*size*/, void* search_pointer) {
  const auto* search = static_cast<Search*>(search_pointer);
  bool is_inside = false;
  dl_find_object found{};
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const ElfW(Addr) begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && search->address >= begin && search->address - begin < segment.p_memsz) {
      is_inside = true;
      found.dlfo_map_start = reinterpret_cast<void*>(begin);
      found.dlfo_map_end = reinterpret_cast<void*>(begin + segment.p_memsz);
    }
    if (segment.p_type == PT_GNU_EH_FRAME) found.dlfo_eh_frame = reinterpret_cast<void*>(begin);
  }
  if (!is_inside || found.dlfo_eh_frame == nullptr) return 0;
  *search->result = found;
  return 1;
}

// NOLINTEND(performance-no-int-to-ptr)

}  // namespace

// 0: found. Only the address of the table that the unwinder needs is sure to be what glibc would say.
extern "C" int _dl_find_object(void* address, dl_find_object* result) noexcept {
  Search search{reinterpret_cast<ElfW(Addr)>(address), result};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
