"""What only the building of an image needs: which packages go into it, and the inventory of what it holds. The wheel
of Ingot leaves this folder out."""
