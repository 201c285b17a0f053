#include "daemon/transport/rdma/registrations.h"

#include <cerrno>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::rdma {
namespace {

// Numbers, not enumerators: the macro ibv_reg_mr() mixes them with another enumeration's.
constexpr int kLocallyWritable = IBV_ACCESS_LOCAL_WRITE;
constexpr int kRemotelyWritable = kLocallyWritable | IBV_ACCESS_REMOTE_WRITE;

bool pages_on_demand(ibv_context* context) {
  ibv_device_attr_ex attributes{};
  return ibv_query_device_ex(context, nullptr, &attributes) == 0 &&
         (attributes.odp_caps.general_caps & IBV_ODP_SUPPORT) != 0 &&
         (attributes.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_WRITE) != 0;
}

}  // namespace

Result<std::shared_ptr<Registrations>> Registrations::create(Device& device) {
  ibv_pd* domain = ibv_alloc_pd(device.context());
  if (domain == nullptr) {
    return Status(Code::kResourceExhausted, "cannot make a protection domain: " + handshake::errno_text(errno),
                  device.name(), "run fewer jobs at once");
  }
  return std::shared_ptr<Registrations>(new Registrations(device, domain));
}

Registrations::~Registrations() {
  clear();
  ibv_dealloc_pd(domain_);
}

Status Registrations::map(std::span<std::byte> bytes) {
  if (bytes.empty() || find(bytes) != nullptr) return {};
  MemoryRegion region(ibv_reg_mr(domain_, bytes.data(), bytes.size(), kRemotelyWritable));
  const int error = errno;
  if (!region && pages_on_demand(device_.context())) {
    region.reset(ibv_reg_mr(domain_, bytes.data(), bytes.size(), kRemotelyWritable | IBV_ACCESS_ON_DEMAND));
  }
  if (!region) return registration_failed(error, bytes.size(), device_.name());
  pieces_.push_back({bytes.data(), bytes.size(), std::move(region)});
  return {};
}

void Registrations::unmap(std::span<std::byte> bytes) {
  std::erase_if(pieces_,
                [&](const Piece& piece) { return piece.begin == bytes.data() && piece.length == bytes.size(); });
  last_ = 0;
}

Status Registrations::map(const ports::DeviceMemory& memory) {
  MemoryRegion region(
      ibv_reg_dmabuf_mr(domain_, memory.offset, memory.length, memory.address, memory.dmabuf, kRemotelyWritable));
  if (!region) return dmabuf_failed(errno, memory.length, device_.name());
  pieces_.push_back({reinterpret_cast<const std::byte*>(memory.address), memory.length, std::move(region)});
  return {};
}

Result<MemoryRegion> Registrations::map_private(std::span<std::byte> bytes) {
  const int access = IBV_ACCESS_LOCAL_WRITE;  // ibv_reg_mr() mixes enumerations, at which clang warns
  MemoryRegion region(ibv_reg_mr(domain_, bytes.data(), bytes.size(), access));
  if (!region) return registration_failed(errno, bytes.size(), device_.name());
  return region;
}

const ibv_mr* Registrations::find(std::span<const std::byte> bytes) const {
  const auto holds = [&](const Piece& piece) {
    return bytes.data() >= piece.begin && bytes.data() + bytes.size() <= piece.begin + piece.length;
  };
  if (last_ < pieces_.size() && holds(pieces_[last_])) return pieces_[last_].region.get();
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (!holds(pieces_[i])) continue;
    last_ = i;
    return pieces_[i].region.get();
  }
  return nullptr;
}

void Registrations::clear() {
  pieces_.clear();
}

}  // namespace tensorlane::rdma
