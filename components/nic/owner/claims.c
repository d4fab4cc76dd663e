/* claims.c - flows that clients put before the program by themselves: while it is attached, until they die. */
#include "owner.h"
#include "../xdp/claims.h"
#include "../xdp/shared.h"

void owner_claims_init(struct xdp_owner *owner)
{
	owner->claims = xdp_prog_claims(owner->prog, &owner->claims_fd);
}

void owner_claims_publish_and_enable(struct xdp_owner *owner)
{
	if (owner->claims == NULL)
		return;
	xdp_prog_enable_claims_if_mapped(owner->prog);
	xdp_claims_allow(owner->shared);
}

bool owner_claims_close_if_unused(struct xdp_owner *owner)
{
	const uint32_t uses = owner->claims != NULL ? atomic_load(&owner->shared->claims_made) : owner->claims_made;

	if (owner->claims == NULL)
		return true;
	if (uses == owner->claims_made)
		return xdp_claims_forbid_if_none_exist(owner->claims, owner->shared);
	owner->claims_made = uses;
	return false;
}

void owner_claims_free_of_slot(struct xdp_owner *owner, uint32_t slot)
{
	if (owner->claims != NULL)
		xdp_claims_free_of_slot(owner->claims, slot);
}
